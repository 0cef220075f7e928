"""Limits in this process's memory: for tests, and for a gateway of one process that may forget.

A restart forgets everything and two processes share nothing; `sqlite` does both. Every method runs
without a pause, which makes it one atomic step of the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.stores.base import Claim, Granted, Refused, Usage
from gateway.stores.window import (
    MICROSECONDS,
    Counts,
    Held,
    Window,
    decide,
    hold,
    microseconds,
    summarise,
)


@dataclass(slots=True, kw_only=True)
class _Lease:
    expires_us: int
    held: tuple[Held, ...]


class MemoryStore:
    """A `LimitStore`. `clock` gives seconds from any fixed point; a step back counts as no time."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reading_us = microseconds(clock())
        self._now_us = self._reading_us
        self._counters: defaultdict[str, dict[int, Window]] = defaultdict(dict)
        self._leases: dict[str, _Lease] = {}

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        """See `LimitStore.reserve`.

        Raises:
            ValueError: the lease id is in use, or two claims name the same counter.
        """
        now_us = self._advance()
        if lease_id in self._leases:
            raise ValueError(f"lease id {lease_id!r} is in use")
        held = hold(claims, now_us)
        outcome = decide(claims, [self._counts(one) for one in held], now_us)
        if isinstance(outcome, Granted):
            for claim, one in zip(claims, held, strict=True):
                fresh = Window(
                    counter=one.counter,
                    window=one.window,
                    window_us=claim.window_s * MICROSECONDS,
                )
                self._counters[one.counter].setdefault(one.window, fresh).reserved += one.cost
            expires_us = now_us + microseconds(ttl_s)
            self._leases[lease_id] = _Lease(expires_us=expires_us, held=held)
        return outcome

    async def extend(self, lease_id: str, ttl_s: float) -> bool:
        """See `LimitStore.extend`."""
        now_us = self._advance()
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        lease.expires_us = now_us + microseconds(ttl_s)
        return True

    async def settle(self, lease_id: str, tokens: int) -> bool:
        """See `LimitStore.settle`."""
        self._advance()
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        for one in lease.held:
            self._end(one, charge=one.charge(tokens))
        return True

    async def release(self, lease_id: str) -> bool:
        """See `LimitStore.release`."""
        self._advance()
        return self._release(lease_id)

    async def usage(self) -> tuple[Usage, ...]:
        """See `LimitStore.usage`."""
        now_us = self._advance()
        every = (window for windows in self._counters.values() for window in windows.values())
        return summarise(every, now_us)

    async def check(self) -> None:
        """It always answers."""

    async def aclose(self) -> None:
        """Nothing to close."""

    def _advance(self) -> int:
        """Move the store's own time on, reap what has expired by it, and return it."""
        reading_us = microseconds(self._clock())
        self._now_us += max(0, reading_us - self._reading_us)
        self._reading_us = reading_us
        for lease_id in [
            lease_id for lease_id, lease in self._leases.items() if lease.expires_us <= self._now_us
        ]:
            self._release(lease_id)
        return self._now_us

    def _release(self, lease_id: str) -> bool:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        for one in lease.held:
            self._end(one, charge=0)
        return True

    def _end(self, held: Held, *, charge: int) -> None:
        window = self._counters[held.counter].get(held.window)
        if window is None:
            return  # dropped: nothing was reserved in it, and it counts no more
        window.reserved -= held.cost
        window.used += charge

    def _counts(self, held: Held) -> Counts:
        """What stands against one claim; windows that count no more are dropped on the way."""
        windows = self._counters[held.counter]
        for index in [index for index in windows if index < held.window - 1]:
            if not windows[index].reserved:  # else a living lease has still to end in it
                del windows[index]
        totals = {index: window.used + window.reserved for index, window in windows.items()}
        return Counts(current=totals.get(held.window, 0), previous=totals.get(held.window - 1, 0))
