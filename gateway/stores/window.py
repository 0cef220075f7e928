"""The arithmetic every in-process store shares: the sliding-window counter, in whole microseconds.

Everything is an integer, so that a verdict and the wait it announces agree to the microsecond: what
is left of the previous window is rounded up, hence a limit is never exceeded by a fraction. Pure:
knows no clock and no storage.

A request that came late in a full window may have to wait for most of the next one too, so a wait
can be up to two windows long; it is the true one all the same.

Source: the approximation described in Cloudflare's "How we built rate limiting capable of scaling
to millions of domains" (2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.stores.base import Claim, Dimension, Granted, LimitState, Refused, Usage

MICROSECONDS = 1_000_000

CONCURRENCY_RETRY_S = 1.0
"""A slot frees when some request ends, which no clock knows: an answer here takes 1 to 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What stands against one claim, used and reserved together, per fixed window."""

    current: int
    previous: int


@dataclass(slots=True, kw_only=True)
class Window:
    """The count of one counter in one fixed window: ended leases in `used`, living in `reserved`.

    For concurrency `window_us` is 0, there is one window, number 0, and `used` stays 0.
    """

    counter: str
    window: int
    window_us: int
    used: int = 0
    reserved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One claim of a granted lease, as a store remembers it."""

    counter: str
    dimension: Dimension
    window: int
    cost: int

    def charge(self, tokens: int) -> int:
        """What stays in the counter once the lease is settled with `tokens`."""
        match self.dimension:
            case Dimension.REQUESTS:
                return self.cost
            case Dimension.TOKENS:
                return tokens
            case Dimension.CONCURRENCY:
                return 0


def microseconds(seconds: float) -> int:
    """The nearest whole microsecond."""
    return round(seconds * MICROSECONDS)


def window_of(window_us: int, now_us: int) -> int:
    """The number of the fixed window that `now_us` lies in; concurrency has a single one."""
    return now_us // window_us if window_us else 0


def counted(counts: Counts, window_us: int, now_us: int) -> int:
    """What the sliding window that ends now holds."""
    if not window_us:
        return counts.current
    left_us = window_us - now_us % window_us
    return counts.current + -(-counts.previous * left_us // window_us)


def hold(claims: Sequence[Claim], now_us: int) -> tuple[Held, ...]:
    """What a store has to remember of a lease granted now.

    Raises:
        ValueError: two claims name the same counter, so neither could see the other.
    """
    if len({claim.counter for claim in claims}) < len(claims):
        raise ValueError(f"two claims of one lease name the same counter: {claims}")
    return tuple(
        Held(
            counter=claim.counter,
            dimension=claim.dimension,
            window=window_of(claim.window_s * MICROSECONDS, now_us),
            cost=claim.cost,
        )
        for claim in claims
    )


def decide(claims: Sequence[Claim], counts: Sequence[Counts], now_us: int) -> Granted | Refused:
    """Whether all claims fit. If several do not, the one with the longest wait is reported.

    When that one has room again, so have the others: windows only empty as time passes.
    """
    pairs = tuple(zip(claims, counts, strict=True))
    waits = [_wait_s(claim, count, now_us) for claim, count in pairs]
    longest_s = max(waits, default=0.0)
    if longest_s > 0:
        return Refused(
            by=claims[waits.index(longest_s)],
            retry_after_s=longest_s,
            states=tuple(_state(claim, count, now_us) for claim, count in pairs),
        )
    return Granted(
        states=tuple(_state(claim, _add(count, claim), now_us) for claim, count in pairs)
    )


def summarise(windows: Iterable[Window], now_us: int) -> tuple[Usage, ...]:
    """Every counter that is not zero, in order.

    `reserved` is what living leases hold, whenever they began; `used` slides.
    """
    by_counter: dict[str, list[Window]] = {}
    for window in windows:
        by_counter.setdefault(window.counter, []).append(window)
    usages = (_usage(by_counter[counter], now_us) for counter in sorted(by_counter))
    return tuple(usage for usage in usages if usage.used or usage.reserved)


def _usage(windows: list[Window], now_us: int) -> Usage:
    """Of one counter."""
    window_us = windows[0].window_us
    used = {window.window: window.used for window in windows}
    latest = window_of(window_us, now_us)
    counts = Counts(current=used.get(latest, 0), previous=used.get(latest - 1, 0))
    return Usage(
        counter=windows[0].counter,
        used=counted(counts, window_us, now_us),
        reserved=sum(window.reserved for window in windows),
    )


def _add(counts: Counts, claim: Claim) -> Counts:
    return Counts(current=counts.current + claim.cost, previous=counts.previous)


def _state(claim: Claim, counts: Counts, now_us: int) -> LimitState:
    window_us = claim.window_s * MICROSECONDS
    remaining = max(0, claim.amount - counted(counts, window_us, now_us))
    reset_us = 0
    if window_us and counts.current:
        reset_us = 2 * window_us - now_us % window_us
    elif window_us and counts.previous:
        reset_us = window_us - now_us % window_us
    return LimitState(claim=claim, remaining=remaining, reset_s=reset_us / MICROSECONDS)


def _wait_s(claim: Claim, counts: Counts, now_us: int) -> float:
    """Until the claim fits if nothing else happens; 0 if it does now."""
    window_us = claim.window_s * MICROSECONDS
    room = claim.amount - claim.cost
    if counted(counts, window_us, now_us) <= room:
        return 0.0
    if room < 0:
        return math.inf
    if not window_us:
        return CONCURRENCY_RETRY_S
    into_us = now_us % window_us
    if counts.current <= room:  # this window's own count fits: wait for the previous one to fade
        fits_us = window_us - (room - counts.current) * window_us // counts.previous
    else:  # in the next window, this one's count fades the same way
        fits_us = 2 * window_us - room * window_us // counts.current
    # Up to the next whole millisecond: a float clock that is read twice may lose a microsecond.
    return ((fits_us - into_us) // 1000 + 1) / 1000
