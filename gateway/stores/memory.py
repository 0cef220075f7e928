"""Limits in this process's memory: for tests, and for a gateway of one process that may forget.

A restart forgets everything and two processes share nothing; `sqlite` does both. Every method runs
without a pause, which makes it one atomic step of the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.stores.base import Charge, Claim, Entry, Granted, Refused, Spend, Usage
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


@dataclass(slots=True, kw_only=True)
class _Record:
    record: bytes
    held_until_us: int = 0


class MemoryStore:
    """A `LimitStore`. `clock` gives seconds from any fixed point; a step back counts as no time."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reading_us = microseconds(clock())
        self._now_us = self._reading_us
        self._counters: defaultdict[str, dict[int, Window]] = defaultdict(dict)
        self._leases: dict[str, _Lease] = {}
        self._outbox: dict[str, _Record] = {}  # oldest first

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
                    fades_us=one.fades_us,
                )
                self._counters[one.counter].setdefault(one.window, fresh).reserved += one.cost
            expires_us = now_us + microseconds(ttl_s)
            self._leases[lease_id] = _Lease(expires_us=expires_us, held=held)
        return outcome

    async def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        """See `LimitStore.extend`."""
        now_us = self._advance()
        alive = [lease_id for lease_id in lease_ids if lease_id in self._leases]
        for lease_id in alive:
            self._leases[lease_id].expires_us = now_us + microseconds(ttl_s)
        return frozenset(lease_ids).difference(alive)

    async def settle(
        self, lease_id: str, spend: Spend, record: bytes = b""
    ) -> tuple[Charge, ...] | None:
        """See `LimitStore.settle`."""
        self._advance()
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return None
        self._keep(lease_id, record)
        charges = [(one, one.charge(spend)) for one in lease.held]
        for one, charge in charges:
            self._end(one, charge=charge)
        return tuple(
            Charge(counter=one.counter, charged=charge, used=self._used(one))
            for one, charge in charges
            if one.is_period
        )

    async def release(self, lease_id: str, record: bytes = b"") -> bool:
        """See `LimitStore.release`."""
        self._advance()
        was_alive = self._release(lease_id)
        if was_alive:
            self._keep(lease_id, record)
        return was_alive

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        now_us = self._advance()
        free = [one for one in self._outbox.items() if one[1].held_until_us <= now_us][:most]
        for _, one in free:
            one.held_until_us = now_us + microseconds(hold_s)
        return tuple(Entry(lease_id=lease_id, record=one.record) for lease_id, one in free)

    async def forget(self, lease_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        for lease_id in lease_ids:
            self._outbox.pop(lease_id, None)

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

    def _keep(self, lease_id: str, record: bytes) -> None:
        if record:
            self._outbox[lease_id] = _Record(record=record)

    def _used(self, held: Held) -> int:
        """What stands in a period; it may be over, and dropped, by now."""
        window = self._counters[held.counter].get(held.window)
        return window.used if window else 0

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
