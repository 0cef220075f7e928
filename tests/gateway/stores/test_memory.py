"""What only the memory store has to see to: it forgets what counts no more."""

from __future__ import annotations

from gateway.stores.base import Dimension, Period
from gateway.stores.memory import SWEEP_US, MemoryStore
from gateway.stores.window import MICROSECONDS
from tests.clock import FakeClock
from tests.contracts.stores import claim, granted, settle


async def test_days_that_are_over_take_no_memory() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for day in range(400):
        period = Period(name=f"day:{day}", ends_in_s=86_400.0)
        await granted(store, "a", claim(Dimension.TOKENS, period=period))
        await settle(store, "a", 1)
        clock.advance(86_400.0)
    await granted(store, "b")
    assert len(store._counters) == 0


async def test_a_sweep_keeps_what_counts_and_what_a_lease_has_to_end_in() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    brief = Period(name="day:1", ends_in_s=1.0)
    await granted(store, "a", claim(Dimension.TOKENS, period=brief), ttl_s=1e6)
    await granted(store, "b", claim(Dimension.REQUESTS, window_s=3600))
    clock.advance(SWEEP_US / MICROSECONDS)
    assert sum(one.reserved for one in await store.usage()) == 2
    assert await settle(store, "a", 5)
