"""Every limit store against a model that recounts all leases from the beginning each time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from gateway.stores.base import Claim, Dimension, Granted, LimitStore
from tests.clock import FakeClock
from tests.contracts.stores import (
    KINDS,
    MINUTE_START_S,
    extend,
    opened,
    requests,
    settle,
    slots,
    tokens,
)
from tests.valkey import ValkeyServer

TTL_S = 40.0


@dataclass(slots=True, kw_only=True)
class Lease:
    claims: tuple[Claim, ...]
    began_ms: int
    expires_ms: int
    settled: int | None = None
    alive: bool = True


@dataclass(slots=True)
class Model:
    """All leases there ever were, in milliseconds, which are exact."""

    now_ms: int = int(MINUTE_START_S * 1000)
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for lease in self.leases.values():
            lease.alive = lease.alive and lease.expires_ms > self.now_ms

    def reserved(self, claim: Claim) -> int:
        return sum(
            held.cost
            for lease in self.leases.values()
            if lease.alive
            for held in lease.claims
            if held.counter == claim.counter
        )

    def used(self, claim: Claim) -> int:
        return math.ceil(sum(self._weighed(claim, living=False)))

    def total(self, claim: Claim) -> int:
        if not claim.window_s:
            return self.reserved(claim)
        return math.ceil(sum(self._weighed(claim, living=False)) + sum(self._weighed(claim)))

    def _weighed(self, claim: Claim, *, living: bool = True) -> Iterator[Fraction]:
        """What each lease, living or settled, still counts in the sliding window."""
        for lease in self.leases.values():
            cost = {held.counter: held.cost for held in lease.claims}[claim.counter]
            if not living:
                if lease.settled is None or claim.dimension is Dimension.CONCURRENCY:
                    continue
                cost = lease.settled if claim.dimension is Dimension.TOKENS else cost
            elif not lease.alive:
                continue
            yield cost * self._weight(lease.began_ms, claim.window_s * 1000)

    def _weight(self, began_ms: int, window_ms: int) -> Fraction:
        match self.now_ms // window_ms - began_ms // window_ms:
            case 0:
                return Fraction(1)
            case 1:
                return Fraction(window_ms - self.now_ms % window_ms, window_ms)
            case _:
                return Fraction(0)


CLAIMS = (requests(6), tokens(100, 1), slots(3))

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "settle", "release", "extend", "wait"]),
        st.integers(1, 80),  # tokens, or hundreds of milliseconds ...
        st.integers(0, 9),  # ... times this; or which of the leases so far
    ),
    max_size=40,
)


async def check_reserve(store: LimitStore, model: Model, cost: int) -> None:
    claims = (requests(6), tokens(100, cost), slots(3))
    fits = all(model.total(claim) + claim.cost <= claim.amount for claim in claims)
    lease_id = f"lease-{len(model.leases)}"
    outcome = await store.reserve(lease_id, claims, TTL_S)
    assert isinstance(outcome, Granted) == fits
    if fits:
        expires_ms = model.now_ms + int(TTL_S * 1000)
        model.leases[lease_id] = Lease(claims=claims, began_ms=model.now_ms, expires_ms=expires_ms)
    for state in outcome.states:
        assert state.remaining == max(0, state.claim.amount - model.total(state.claim))


async def check_end(store: LimitStore, model: Model, name: str, number: int, pick: int) -> None:
    if not model.leases:
        return
    lease_id = list(model.leases)[pick % len(model.leases)]
    lease = model.leases[lease_id]
    was_alive = lease.alive
    match name:
        case "settle":
            assert await settle(store, lease_id, number) == was_alive
            if was_alive:
                lease.settled = number
            lease.alive = False
        case "release":
            assert await store.release(lease_id) == was_alive
            lease.alive = False
        case _:
            assert await extend(store, lease_id, TTL_S) == was_alive
            lease.expires_ms = model.now_ms + int(TTL_S * 1000)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_counters_stay_exact_and_nothing_is_admitted_beyond_the_amount(
    valkey: ValkeyServer, kind: str, operations: list[tuple[str, int, int]]
) -> None:
    """Cases Q-TPM-RACE, Q-RESERVE-STREAM and Q-CHARGE-ONE, over any order of events."""

    async def scenario() -> None:
        clock, model = FakeClock(MINUTE_START_S), Model()
        async with opened(kind, clock, valkey) as store:
            for name, number, pick in operations:
                if name == "reserve":
                    await check_reserve(store, model, number)
                elif name == "wait":
                    model.pass_time(number * pick * 100)
                    clock.now_s = model.now_ms / 1000
                else:
                    await check_end(store, model, name, number, pick)
                counted = {one.counter: (one.used, one.reserved) for one in await store.usage()}
                expected = {
                    claim.counter: (model.used(claim), model.reserved(claim)) for claim in CLAIMS
                }
                assert counted == {key: both for key, both in expected.items() if any(both)}

    asyncio.run(scenario())
