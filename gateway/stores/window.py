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
from typing import NamedTuple

from gateway.stores.base import Claim, Dimension, Granted, LimitState, Refused, Spend, Usage

MICROSECONDS = 1_000_000

RESERVED_RETRY_S = 1.0
"""What others have reserved comes back when they end, which no clock knows: an answer here takes 1
to 10 s."""


class Counts(NamedTuple):
    """What stands against one claim, used and reserved together, per fixed window."""

    current: int
    previous: int = 0
    reserved: int = 0  # how much of `current` living leases hold


@dataclass(slots=True, kw_only=True)
class Window:
    """The count of one counter in one fixed window: ended leases in `used`, living in `reserved`.

    For concurrency and for a period `window_us` is 0 and there is one window, number 0; concurrency
    has nothing in `used`.
    """

    counter: str
    window: int
    window_us: int
    fades_us: int  # the store's time from which `used` counts no more
    used: int = 0
    reserved: int = 0


class Held(NamedTuple):
    """One claim of a granted lease, as a store remembers it.

    A frozen dataclass would take four times as long to make, and a request makes two of each.
    """

    counter: str
    dimension: Dimension
    window: int
    cost: int
    window_us: int
    is_period: bool
    fades_us: int  # the store's time from which its `used` counts no more; of concurrency, 0

    def charge(self, spend: Spend) -> int:
        """What stays in the counter once the lease is settled."""
        return 0 if self.dimension is Dimension.CONCURRENCY else spend.amount(self.dimension)


def microseconds(seconds: float) -> int:
    """The nearest whole microsecond."""
    return round(seconds * MICROSECONDS)


def window_of(window_us: int, now_us: int) -> int:
    """The number of the fixed window that `now_us` lies in; without a length there is one, 0."""
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
    held = tuple([_held(claim, now_us) for claim in claims])
    if len({one.counter for one in held}) < len(held):
        raise ValueError(f"two claims of one lease name the same counter: {claims}")
    return held


def _held(claim: Claim, now_us: int) -> Held:
    window_us = claim.window_s * MICROSECONDS
    window = window_of(window_us, now_us)
    fades_us = (window + 2) * window_us  # with the window after it
    if claim.period is not None:
        fades_us = now_us + microseconds(claim.period.ends_in_s)
    return Held(
        claim.counter,
        claim.dimension,
        window,
        claim.cost,
        window_us,
        claim.period is not None,
        fades_us,
    )


def decide(claims: Sequence[Claim], counts: Sequence[Counts], now_us: int) -> Granted | Refused:
    """Whether all claims fit. If several do not, the one with the longest wait is reported.

    When that one has room again, so have the others: windows only empty as time passes.
    """
    pairs = tuple(zip(claims, counts, strict=True))
    waits = [_wait_s(claim, count, now_us) for claim, count in pairs]
    longest_s = max(waits, default=0.0)
    if not longest_s:
        return Granted(states=tuple([_state(*pair, now_us, taken=pair[0].cost) for pair in pairs]))
    claim, count = pairs[waits.index(longest_s)]
    return Refused(
        by=claim,
        retry_after_s=longest_s,
        states=tuple([_state(*pair, now_us) for pair in pairs]),
        is_used_up=claim.period is not None and _is_used_up(claim, count),
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
    used = {window.window: window.used for window in windows if window.fades_us > now_us}
    latest = window_of(window_us, now_us)
    counts = Counts(current=used.get(latest, 0), previous=used.get(latest - 1, 0))
    return Usage(
        counter=windows[0].counter,
        used=counted(counts, window_us, now_us),
        reserved=sum(window.reserved for window in windows),
    )


def _is_used_up(claim: Claim, counts: Counts) -> bool:
    """Whether the claim would not fit either if every living lease gave all of its own back."""
    return counts.current - counts.reserved + claim.cost > claim.amount


def _state(claim: Claim, counts: Counts, now_us: int, *, taken: int = 0) -> LimitState:
    """After so much more was taken of it."""
    window_us = claim.window_s * MICROSECONDS
    remaining = max(0, claim.amount - taken - counted(counts, window_us, now_us))
    reset_us = 0
    if claim.period is not None:
        reset_us = microseconds(claim.period.ends_in_s)
    elif window_us and counts.current + taken:
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
    if claim.period is not None and _is_used_up(claim, counts):
        return claim.period.ends_in_s
    if not window_us:
        return RESERVED_RETRY_S
    into_us = now_us % window_us
    if counts.current <= room:  # this window's own count fits: wait for the previous one to fade
        fits_us = window_us - (room - counts.current) * window_us // counts.previous
    else:  # in the next window, this one's count fades the same way
        fits_us = 2 * window_us - room * window_us // counts.current
    # Up to the next whole millisecond: a float clock that is read twice may lose a microsecond.
    return ((fits_us - into_us) // 1000 + 1) / 1000
