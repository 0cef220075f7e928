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

SWEEP_US = 60 * MICROSECONDS
"""Between two looks for windows that count no more."""


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
        self._swept_us = self._now_us
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
            for one in held:
                window = self._window(one)
                window.reserved += one.cost
                window.fades_us = max(window.fades_us, one.fades_us)
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
        now_us = self._advance()
        held = self._end(lease_id, spend, record)
        if held is None:
            return None
        return tuple(
            Charge(counter=one.counter, charged=one.charge(spend), used=self._window(one).used)
            for one in held
            if one.is_period and one.fades_us > now_us
        )

    async def release(self, lease_id: str, record: bytes = b"") -> bool:
        """See `LimitStore.release`."""
        self._advance()
        return self._end(lease_id, None, record) is not None

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        now_us = self._advance()
        free = [one for one in self._outbox.items() if one[1].held_until_us <= now_us][:most]
        for _, one in free:
            one.held_until_us = now_us + microseconds(hold_s)
        return tuple(Entry(entry_id=entry_id, record=one.record) for entry_id, one in free)

    async def forget(self, entry_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        for entry_id in entry_ids:
            self._outbox.pop(entry_id, None)

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
            self._end(lease_id, None)
        if self._now_us >= self._swept_us + SWEEP_US:
            self._sweep()
        return self._now_us

    def _sweep(self) -> None:
        """Drop what counts no more and no living lease has still to end in."""
        self._swept_us = self._now_us
        for counter, windows in tuple(self._counters.items()):
            kept = {
                number: one
                for number, one in windows.items()
                if one.reserved or one.fades_us > self._now_us
            }
            if kept:
                self._counters[counter] = kept
            else:
                del self._counters[counter]

    def _end(
        self, lease_id: str, spend: Spend | None, record: bytes = b""
    ) -> tuple[Held, ...] | None:
        """Settle a lease, or release it if nothing was spent; what it held, None if it is gone."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return None
        if record:
            self._outbox[lease_id] = _Record(record=record)
        for one in lease.held:
            window = self._window(one)
            window.reserved -= one.cost
            window.used += one.charge(spend) if spend else 0
        return lease.held

    def _window(self, held: Held) -> Window:
        fresh = Window(
            counter=held.counter,
            window=held.window,
            window_us=held.window_us,
            fades_us=held.fades_us,
        )
        return self._counters[held.counter].setdefault(held.window, fresh)

    def _counts(self, held: Held) -> Counts:
        """What stands against one claim."""
        windows = self._counters[held.counter]
        current, previous = windows.get(held.window), windows.get(held.window - 1)
        return Counts(
            current=current.used + current.reserved if current else 0,
            previous=previous.used + previous.reserved if previous else 0,
            reserved=current.reserved if current else 0,
        )
