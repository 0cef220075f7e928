"""Every limit store against a model that recounts all leases from the beginning each time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from gateway.stores.base import (
    Charge,
    Claim,
    Dimension,
    Granted,
    LimitStore,
    Period,
    Refused,
    Spend,
)
from tests.clock import FakeClock
from tests.contracts.stores import KINDS, MINUTE_START_S, claim, opened, requests, slots, tokens
from tests.valkey import ValkeyServer

TTL_S = 40.0
HOLD_S = 20.0
DAY_MS = 150_000  # of the model: a few of them pass
MICROS = 10**13  # of money for one token: amounts are near the largest a policy may write


def a_day(zone: str, now_ms: int) -> Period:
    """The model's day in a time zone, which begins earlier or later than in the other."""
    into_ms = now_ms + {"here": 0, "there": 50_000}[zone]
    return Period(
        name=f"day:{into_ms // DAY_MS}@{zone}",
        ends_in_s=(DAY_MS - into_ms % DAY_MS) / 1000,
    )


def claims_at(now_ms: int, cost: int) -> tuple[Claim, ...]:
    """One of each dimension, and both kinds of tokens by the day."""
    here, there = a_day("here", now_ms), a_day("there", now_ms)
    money = MICROS * cost
    return (
        requests(6),
        slots(3),
        tokens(100, cost),
        claim(Dimension.INPUT_TOKENS, amount=90, window_s=10, cost=cost),
        claim(Dimension.OUTPUT_TOKENS, amount=160, cost=cost, period=here),
        claim(Dimension.COST, amount=100 * MICROS, window_s=60, cost=money),
        claim(Dimension.COST, amount=170 * MICROS, cost=money, period=there),
    )


def spend_of(number: int) -> Spend:
    return Spend(
        input_tokens=number // 2,
        output_tokens=number - number // 2,
        cost_micros=MICROS * number - 1,
    )


@dataclass(slots=True, kw_only=True)
class Lease:
    claims: tuple[Claim, ...]
    began_ms: int
    expires_ms: int
    settled: Spend | None = None
    alive: bool = True

    def claim_on(self, counter: str) -> Claim | None:
        return next((held for held in self.claims if held.counter == counter), None)

    def is_over(self, held: Claim, now_ms: int) -> bool:
        """Whether the period that the claim was on has ended."""
        assert held.period is not None
        return now_ms >= self.began_ms + round(held.period.ends_in_s * 1000)


@dataclass(slots=True)
class Model:
    """All leases there ever were, and the outbox, in milliseconds, which are exact."""

    now_ms: int = int(MINUTE_START_S * 1000)
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    outbox: dict[str, int] = field(default_factory=dict[str, int])  # record -> held until

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for lease in self.leases.values():
            lease.alive = lease.alive and lease.expires_ms > self.now_ms

    def usage(self) -> dict[str, tuple[int, int]]:
        """Used and reserved of every counter there ever was, if they are not both zero."""
        every = {held.counter: held for lease in self.leases.values() for held in lease.claims}
        both = {name: (self.used(held), self.reserved(held)) for name, held in every.items()}
        return {name: counts for name, counts in both.items() if any(counts)}

    def reserved(self, asked: Claim) -> int:
        held = (lease.claim_on(asked.counter) for lease in self.leases.values() if lease.alive)
        return sum(one.cost for one in held if one is not None)

    def used(self, asked: Claim) -> int:
        return math.ceil(sum(self._weighed(asked, living=False)))

    def total(self, asked: Claim) -> int:
        if not asked.window_s:
            return self.used(asked) + self.reserved(asked)
        return math.ceil(sum(self._weighed(asked, living=False)) + sum(self._weighed(asked)))

    def _weighed(self, asked: Claim, *, living: bool = True) -> Iterator[Fraction]:
        """What each lease, living or settled, still counts in the window or the period."""
        for lease in self.leases.values():
            held = lease.claim_on(asked.counter)
            if held is None or asked.dimension is Dimension.CONCURRENCY:
                continue
            if living and lease.alive:
                yield held.cost * self._weight(lease, held)
            elif not living and lease.settled is not None:
                yield lease.settled.amount(held.dimension) * self._weight(lease, held)

    def _weight(self, lease: Lease, held: Claim) -> Fraction:
        if held.period is not None:
            return Fraction(not lease.is_over(held, self.now_ms))
        window_ms = held.window_s * 1000
        match self.now_ms // window_ms - lease.began_ms // window_ms:
            case 0:
                return Fraction(1)
            case 1:
                return Fraction(window_ms - self.now_ms % window_ms, window_ms)
            case _:
                return Fraction(0)


NAMES = ("reserve", "reserve", "reserve", "settle", "settle", "wait", "wait")  # the likely ones

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "release", "extend", "collect", "forget"]),
        st.integers(1, 80),  # tokens, or hundreds of milliseconds ...
        st.integers(0, 9),  # ... times this; or which of the leases so far, or how many
    ),
    min_size=30,  # else they are 5 in the mean, and hardly any limit is reached
    max_size=60,
)


class Checked:
    """A store and the model beside it: each step is taken in both, and their answers compared."""

    def __init__(self, store: LimitStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.model = Model()
        self.collected: list[tuple[str, str]] = []  # entry id, record

    async def step(self, name: str, number: int, pick: int) -> None:
        match name:
            case "reserve":
                await self.reserve(number)
            case "wait":
                self.pass_time(number * pick * 100)
            case "extend":
                await self.extend()
            case "collect":
                await self.collect(1 + pick)
            case "forget":
                self.pass_time(1)  # as it does: an id may be told by the moment of its record
                await self.forget(pick)
            case _:
                await self.end(name, number, pick)
        counted = {one.counter: (one.used, one.reserved) for one in await self.store.usage()}
        assert counted == self.model.usage()

    def pass_time(self, ms: int) -> None:
        self.model.pass_time(ms)
        self.clock.now_s = self.model.now_ms / 1000

    async def reserve(self, cost: int) -> None:
        model = self.model
        claims = claims_at(model.now_ms, cost)
        fits = all(model.total(one) + one.cost <= one.amount for one in claims)
        lease_id = f"lease-{len(model.leases)}"
        outcome = await self.store.reserve(lease_id, claims, TTL_S)
        assert isinstance(outcome, Granted) == fits
        if isinstance(outcome, Refused):
            self.check_refusal(outcome)
        else:
            expires_ms = model.now_ms + int(TTL_S * 1000)
            model.leases[lease_id] = Lease(
                claims=claims, began_ms=model.now_ms, expires_ms=expires_ms
            )
        for state in outcome.states:
            assert state.remaining == max(0, state.claim.amount - model.total(state.claim))

    def check_refusal(self, outcome: Refused) -> None:
        by = outcome.by
        assert self.model.total(by) + by.cost > by.amount
        is_used_up = by.period is not None and self.model.used(by) + by.cost > by.amount
        assert outcome.is_used_up == is_used_up
        if by.period is not None and is_used_up:
            assert outcome.retry_after_s == by.period.ends_in_s

    async def end(self, name: str, number: int, pick: int) -> None:
        if not self.model.leases:
            return
        lease_id = list(self.model.leases)[pick % len(self.model.leases)]
        lease = self.model.leases[lease_id]
        was_alive, lease.alive = lease.alive, False
        record = f"{lease_id} {name}"
        if was_alive:
            self.model.outbox[record] = 0
        if name == "release":
            assert await self.store.release(lease_id, record.encode()) == was_alive
            return
        charges = await self.store.settle(lease_id, spend_of(number), record.encode())
        if was_alive:
            lease.settled = spend_of(number)
        assert charges == (self.charges(lease) if was_alive else None)

    def charges(self, lease: Lease) -> tuple[Charge, ...]:
        """What a lease just settled has charged to periods that are not over."""
        assert lease.settled is not None
        return tuple(
            Charge(
                counter=held.counter,
                charged=lease.settled.amount(held.dimension),
                used=self.model.used(held),
            )
            for held in lease.claims
            if held.period is not None and not lease.is_over(held, self.model.now_ms)
        )

    async def extend(self) -> None:
        leases = self.model.leases
        gone = {lease_id for lease_id, lease in leases.items() if not lease.alive}
        assert await self.store.extend((*leases, "never there"), TTL_S) == {*gone, "never there"}
        for lease_id in leases.keys() - gone:
            leases[lease_id].expires_ms = self.model.now_ms + int(TTL_S * 1000)

    async def collect(self, most: int) -> None:
        outbox, now_ms = self.model.outbox, self.model.now_ms
        free = {record for record, until_ms in outbox.items() if until_ms <= now_ms}
        entries = await self.store.collect(most, HOLD_S)
        got = [entry.record.decode() for entry in entries]
        assert len(got) == min(most, len(free))
        assert set(got) <= free
        outbox.update(dict.fromkeys(got, now_ms + int(HOLD_S * 1000)))
        self.collected += [(entry.entry_id, entry.record.decode()) for entry in entries]

    async def forget(self, pick: int) -> None:
        some = self.collected[: 1 + pick]
        await self.store.forget(tuple(entry_id for entry_id, _ in some))
        for _, record in some:
            self.model.outbox.pop(record, None)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS)
def test_counters_stay_exact_and_nothing_is_admitted_beyond_the_amount(
    valkey: ValkeyServer, kind: str, operations: list[tuple[str, int, int]]
) -> None:
    """Cases Q-TPM-RACE, Q-RESERVE-STREAM and Q-CHARGE-ONE, over any order of events.

    And whatever is charged or released leaves its record in the outbox until it is forgotten.
    """

    async def scenario() -> None:
        clock = FakeClock(MINUTE_START_S)
        async with opened(kind, clock, valkey) as store:
            checked = Checked(store, clock)
            for name, number, pick in operations:
                await checked.step(name, number, pick)

    asyncio.run(scenario())
