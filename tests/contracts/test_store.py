"""What every limit store must do, whatever it keeps its counters in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace

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
    Usage,
)
from gateway.stores.window import RESERVED_RETRY_S
from tests.clock import FakeClock
from tests.contracts.stores import (
    KINDS,
    MINUTE_START_S,
    TTL_S,
    claim,
    extend,
    granted,
    opened,
    refused,
    requests,
    settle,
    slots,
    tokens,
)
from tests.valkey import ValkeyServer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(MINUTE_START_S)


@pytest.fixture(params=KINDS)
async def store(
    request: pytest.FixtureRequest, clock: FakeClock, valkey: ValkeyServer
) -> AsyncIterator[LimitStore]:
    async with opened(request.param, clock, valkey) as store:
        yield store


async def test_a_reservation_counts_against_the_limit_before_anything_is_settled(
    store: LimitStore,
) -> None:
    """Case Q-TPM-RACE: usage that counts only at the end lets every concurrent request pass."""
    outcome = await granted(store, "a", tokens(300, 100))
    assert [state.remaining for state in outcome.states] == [200]
    await granted(store, "b", tokens(300, 100))
    await granted(store, "c", tokens(300, 100))
    verdict = await refused(store, tokens(300, 100))
    assert [state.remaining for state in verdict.states] == [0]


async def test_of_fifty_at_once_as_many_are_granted_as_fit(store: LimitStore) -> None:
    """Case Q-TPM-RACE: 50 times 7 tokens on 100 a minute is 14 grants, never 15."""
    outcomes = await asyncio.gather(
        *(store.reserve(f"lease-{i}", (tokens(100, 7),), TTL_S) for i in range(50))
    )
    assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 14


async def test_a_refusal_consumes_nothing_in_any_limit(store: LimitStore) -> None:
    """Case Q-REJECT-CONSUMES: refused for concurrency, it must not have used a request."""
    await granted(store, "a", requests(2), slots(1))
    before = await store.usage()
    verdict = await refused(store, requests(2), slots(1))
    assert verdict.by == slots(1)
    assert await store.usage() == before
    await settle(store, "a", 0)
    outcome = await granted(store, "c", requests(2), slots(1))
    assert outcome.states[0].remaining == 0


async def test_settling_corrects_the_reservation_to_the_actual_tokens(store: LimitStore) -> None:
    """Cases Q-CHARGE-ONE and Q-STREAM-TPM: remaining falls by the usage, not by one or zero."""
    await granted(store, "a", tokens(1000, 400))
    assert await settle(store, "a", 130)
    outcome = await granted(store, "b", tokens(1000, 0))
    assert outcome.states[0].remaining == 870


async def test_twenty_short_answers_fit_a_limit_that_holds_five_reservations(
    store: LimitStore,
) -> None:
    """Case Q-RESERVE-STREAM: what was reserved and not used comes back at once, every time."""
    for i in range(20):
        await granted(store, f"lease-{i}", tokens(1000, 200))
        await settle(store, f"lease-{i}", 10)
    (usage,) = await store.usage()
    assert (usage.used, usage.reserved) == (200, 0)


async def test_settling_more_than_was_reserved_is_counted_in_full(store: LimitStore) -> None:
    await granted(store, "a", tokens(100, 10))
    await settle(store, "a", 150)
    verdict = await refused(store, tokens(100, 1))
    assert verdict.states[0].remaining == 0  # never negative
    assert (await store.usage())[0].used == 150


async def test_settling_gives_the_slot_back_and_keeps_the_request(store: LimitStore) -> None:
    await granted(store, "a", requests(5), tokens(100, 30), slots(1))
    await settle(store, "a", 20)
    usages = {usage.counter: (usage.used, usage.reserved) for usage in await store.usage()}
    assert usages == {requests(5).counter: (1, 0), tokens(100, 30).counter: (20, 0)}


async def test_releasing_leaves_no_trace(store: LimitStore) -> None:
    await granted(store, "a", requests(5), tokens(100, 30), slots(1))
    assert await store.release("a")
    assert await store.usage() == ()


async def test_a_lease_ends_once(store: LimitStore) -> None:
    await granted(store, "a", tokens(100, 30))
    assert await settle(store, "a", 10)
    assert not await settle(store, "a", 10)
    assert not await store.release("a")
    assert not await extend(store, "a", TTL_S)
    assert (await store.usage())[0].used == 10


async def test_a_lease_id_in_use_is_refused_and_reserves_nothing(store: LimitStore) -> None:
    await granted(store, "a", tokens(100, 30))
    with pytest.raises(ValueError, match="in use"):
        await store.reserve("a", (tokens(100, 30),), TTL_S)
    assert (await store.usage())[0].reserved == 30


async def test_two_claims_on_one_counter_are_refused(store: LimitStore) -> None:
    with pytest.raises(ValueError, match="same counter"):
        await store.reserve("a", (tokens(100, 30), tokens(100, 30)), TTL_S)


async def test_a_lease_without_claims_is_granted_and_ends(store: LimitStore) -> None:
    assert (await granted(store, "a")).states == ()
    assert await settle(store, "a", 10)


async def test_an_expired_lease_gives_everything_back(store: LimitStore, clock: FakeClock) -> None:
    await granted(store, "a", requests(5), tokens(100, 30), slots(1), ttl_s=30.0)
    clock.advance(30.0)
    assert await store.usage() == ()
    assert not await settle(store, "a", 30)


async def test_an_extended_lease_outlives_its_first_expiry(
    store: LimitStore, clock: FakeClock
) -> None:
    await granted(store, "a", slots(1), ttl_s=30.0)
    clock.advance(20.0)
    assert await extend(store, "a", 30.0)
    clock.advance(20.0)
    assert (await refused(store, slots(1))).by == slots(1)


async def test_the_correction_goes_to_the_window_of_the_reservation(
    store: LimitStore, clock: FakeClock
) -> None:
    await granted(store, "a", tokens(100, 80))
    clock.advance(90.0)  # half of the next window: half of the last one still counts
    await settle(store, "a", 20)
    assert (await store.usage())[0].used == 10


async def test_a_correction_to_a_window_long_gone_changes_nothing_now(
    store: LimitStore, clock: FakeClock
) -> None:
    await granted(store, "a", tokens(100, 80))
    clock.advance(300.0)
    await granted(store, "b", tokens(100, 5))
    await settle(store, "b", 5)
    assert await settle(store, "a", 20)
    assert await store.usage() == (Usage(counter=tokens(100, 5).counter, used=5, reserved=0),)


async def test_a_lease_that_reserved_nothing_ends_after_its_window_is_gone(
    store: LimitStore, clock: FakeClock
) -> None:
    await granted(store, "a", tokens(100, 0))
    clock.advance(300.0)
    await granted(store, "b", tokens(100, 0))
    assert await settle(store, "a", 20)
    assert await store.usage() == ()


async def test_the_last_window_fades_as_the_next_one_passes(
    store: LimitStore, clock: FakeClock
) -> None:
    await granted(store, "a", tokens(100, 90))
    await settle(store, "a", 90)
    remaining = []
    for _ in range(4):
        clock.advance(30.0)
        outcome = await granted(store, f"probe-{clock.now_s}", tokens(100, 0))
        remaining.append(outcome.states[0].remaining)
    assert remaining == [10, 10, 55, 100]


async def test_reset_tells_when_the_limit_is_whole_again(
    store: LimitStore, clock: FakeClock
) -> None:
    clock.advance(15.0)
    outcome = await granted(store, "a", tokens(100, 90), slots(2))
    assert [state.reset_s for state in outcome.states] == [105.0, 0.0]
    await settle(store, "a", 90)
    clock.advance(105.0)
    assert await store.usage() == ()


async def test_a_cost_over_the_whole_amount_never_fits(store: LimitStore) -> None:
    assert (await refused(store, tokens(100, 101))).retry_after_s == math.inf


async def test_the_claim_with_the_longest_wait_is_the_one_reported(store: LimitStore) -> None:
    short = requests(1, limit="burst", window_s=10)
    long = requests(1, limit="slow", window_s=60)
    await granted(store, "a", short, long)
    verdict = await refused(store, short, long)
    assert verdict.by == long


async def test_raising_or_lowering_an_amount_keeps_what_was_used(store: LimitStore) -> None:
    """Case Q-RESET: the documented rule; another window is another counter and begins at zero."""
    await granted(store, "a", tokens(1000, 900))
    await settle(store, "a", 900)
    assert (await refused(store, tokens(500, 1))).states[0].remaining == 0
    assert (await granted(store, "b", tokens(2000, 0))).states[0].remaining == 1100
    hourly = tokens(500, 0, window_s=3600)
    assert (await granted(store, "c", hourly)).states[0].remaining == 500


async def test_a_clock_stepping_back_neither_refills_nor_locks(
    store: LimitStore, clock: FakeClock
) -> None:
    """Case Q-CLOCK-STEP: an hour back counts as no time, and time goes on from there."""
    for i in range(3):
        await granted(store, f"lease-{i}", requests(10))
    clock.advance(-3600.0)
    assert (await granted(store, "d", requests(10))).states[0].remaining == 6
    clock.advance(-11.0)
    assert (await granted(store, "e", requests(10))).states[0].remaining == 5
    for i in range(5):
        await granted(store, f"more-{i}", requests(10))
    verdict = await refused(store, requests(10))
    assert verdict.retry_after_s <= 66.001  # the window, and a tenth of the next for one of ten
    clock.advance(verdict.retry_after_s)
    await granted(store, "f", requests(10))


async def test_a_lease_does_not_expire_when_the_clock_steps_back(
    store: LimitStore, clock: FakeClock
) -> None:
    """Case Q-CLOCK-STEP: and it does expire its own time after."""
    await granted(store, "a", slots(1), ttl_s=30.0)
    clock.advance(-3600.0)
    await refused(store, slots(1))
    clock.advance(29.9)
    await refused(store, slots(1))
    clock.advance(0.1)
    await granted(store, "b", slots(1))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    amount=st.integers(1, 50),
    costs=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 90_000)), max_size=12),
    cost=st.integers(1, 50),
)
def test_waiting_as_long_as_told_makes_the_claim_fit_and_a_moment_less_does_not(
    valkey: ValkeyServer, kind: str, amount: int, costs: list[tuple[int, int]], cost: int
) -> None:
    async def scenario() -> None:
        clock = FakeClock(MINUTE_START_S)
        async with opened(kind, clock, valkey) as store:
            for i, (earlier, gap_ms) in enumerate(costs):
                await store.reserve(f"lease-{i}", (tokens(amount, earlier),), 1e6)
                clock.advance(gap_ms / 1000)
            outcome = await store.reserve("probe", (tokens(amount, cost),), 1e6)
            if isinstance(outcome, Granted):
                return
            if cost > amount:
                assert outcome.retry_after_s == math.inf
                return
            assert 0 < outcome.retry_after_s <= 120.001
            clock.advance(max(0.0, outcome.retry_after_s - 0.002))
            early = await store.reserve("early", (tokens(amount, cost),), 1e6)
            assert isinstance(early, Refused)
            clock.advance(early.retry_after_s)
            await granted(store, "probe", tokens(amount, cost))

    asyncio.run(scenario())


# --- dimensions and periods -------------------------------------------------------------------

TODAY = Period(name="day:2026-12-03@UTC", ends_in_s=3600.0)
BERLIN = Period(name="day:2026-12-03@Europe/Berlin", ends_in_s=7200.0)
SPEND = Spend(input_tokens=30, output_tokens=12, cost_micros=250)


def a_day(amount: int, cost: int, period: Period = TODAY) -> Claim:
    return claim(Dimension.TOKENS, limit="tpd", amount=amount, cost=cost, period=period)


async def used(store: LimitStore) -> dict[str, tuple[int, int]]:
    return {one.counter: (one.used, one.reserved) for one in await store.usage()}


async def test_each_dimension_is_settled_with_its_own_part(store: LimitStore) -> None:
    claims = [claim(one, cost=40, amount=1000, window_s=60) for one in Dimension]
    claims[-1] = slots(40)
    await granted(store, "a", *claims)
    assert await store.settle("a", SPEND) == ()
    assert {name.split("/")[2]: both for name, both in (await used(store)).items()} == {
        "requests": (1, 0),
        "input_tokens": (30, 0),
        "output_tokens": (12, 0),
        "tokens": (42, 0),
        "cost": (250, 0),
    }


async def test_a_period_counts_in_full_until_it_is_over(
    store: LimitStore, clock: FakeClock
) -> None:
    outcome = await granted(store, "a", a_day(100, 80))
    assert [(one.remaining, one.reset_s) for one in outcome.states] == [(20, 3600.0)]
    await settle(store, "a", 80)
    clock.advance(3599.0)
    later = a_day(100, 21, Period(name=TODAY.name, ends_in_s=1.0))
    verdict = await refused(store, later)
    assert (verdict.retry_after_s, verdict.is_used_up) == (1.0, True)
    clock.advance(1.0)
    tomorrow = Period(name="day:2026-12-04@UTC", ends_in_s=86_400.0)
    await granted(store, "b", a_day(100, 100, tomorrow))
    assert await used(store) == {a_day(100, 0, tomorrow).counter: (0, 100)}


async def test_what_others_reserved_of_a_period_does_not_use_it_up(store: LimitStore) -> None:
    """Case Q-RESERVE-STREAM: it comes back, so the wait is short."""
    await granted(store, "a", a_day(100, 80))
    verdict = await refused(store, a_day(100, 30))
    assert not verdict.is_used_up
    assert verdict.retry_after_s == RESERVED_RETRY_S
    await settle(store, "a", 10)
    await granted(store, "b", a_day(100, 30))


async def test_a_period_whose_end_is_put_off_counts_until_then(
    store: LimitStore, clock: FakeClock
) -> None:
    """A calendar's clock may be set back in the middle of it."""
    await granted(store, "a", a_day(100, 30, Period(name=TODAY.name, ends_in_s=10.0)))
    await granted(store, "b", a_day(100, 40, Period(name=TODAY.name, ends_in_s=3600.0)))
    await settle(store, "b", 40)
    await settle(store, "a", 30)
    clock.advance(120.0)
    later = a_day(100, 31, Period(name=TODAY.name, ends_in_s=3480.0))
    assert (await refused(store, later)).is_used_up
    assert await used(store) == {later.counter: (70, 0)}


async def test_two_time_zones_have_two_days(store: LimitStore) -> None:
    await granted(store, "a", a_day(100, 60), a_day(100, 60, BERLIN))
    assert await used(store) == {
        a_day(100, 0).counter: (0, 60),
        a_day(100, 0, BERLIN).counter: (0, 60),
    }


async def test_a_lease_may_end_after_its_period(store: LimitStore, clock: FakeClock) -> None:
    """Its charge counts nowhere any more, least of all in the next period."""
    await granted(store, "a", a_day(100, 60, Period(name="day:1", ends_in_s=10.0)))
    clock.advance(20.0)
    assert await store.settle("a", SPEND) == ()
    assert await store.usage() == ()


async def test_of_many_that_settle_one_crosses_a_threshold(store: LimitStore) -> None:
    async def one(number: int) -> tuple[Charge, ...]:
        lease_id = f"lease-{number}"
        await granted(store, lease_id, a_day(10_000, 100))
        return await store.settle(lease_id, SPEND) or ()

    charges = [charge for (charge,) in await asyncio.gather(*map(one, range(40)))]
    assert {charge.counter for charge in charges} == {a_day(1, 1).counter}
    assert sorted(charge.used for charge in charges) == [42 * (i + 1) for i in range(40)]
    crossing = [one for one in charges if one.used - one.charged < 800 <= one.used]
    assert len(crossing) == 1


async def test_an_amount_of_money_is_exact(store: LimitStore) -> None:
    largest = 10**15
    asked = claim(Dimension.COST, amount=largest, cost=largest - 1, period=TODAY)
    await granted(store, "a", asked)
    spend = Spend(input_tokens=1, output_tokens=1, cost_micros=largest - 3)
    (charge,) = await store.settle("a", spend) or ()
    assert (charge.charged, charge.used) == (largest - 3, largest - 3)
    outcome = await granted(store, "b", replace(asked, cost=3))
    assert outcome.states[0].remaining == 0


async def test_many_leases_are_extended_in_one_step(store: LimitStore, clock: FakeClock) -> None:
    for number in range(5):
        await granted(store, f"lease-{number}", slots(10), ttl_s=30.0 - 10 * (number % 2))
    clock.advance(20.0)
    names = tuple(f"lease-{number}" for number in range(6))
    assert await store.extend(names, 30.0) == {"lease-1", "lease-3", "lease-5"}
    clock.advance(29.0)
    assert await used(store) == {slots(10).counter: (0, 3)}


async def test_a_step_that_is_refused_revives_nobody(store: LimitStore, clock: FakeClock) -> None:
    """What had expired by then stays so, though the step itself comes to nothing."""
    await granted(store, "gone", slots(1), ttl_s=30.0)
    await granted(store, "alive")
    clock.advance(30.0)
    with pytest.raises(ValueError, match="in use"):
        await store.reserve("alive", (slots(1),), TTL_S)
    assert not await extend(store, "gone", 30.0)
    assert await store.usage() == ()


# --- the outbox -------------------------------------------------------------------------------


async def records(store: LimitStore, most: int = 100, hold_s: float = 30.0) -> list[bytes]:
    return [entry.record for entry in await store.collect(most, hold_s)]


async def test_the_step_that_ends_a_lease_keeps_its_record(store: LimitStore) -> None:
    await granted(store, "a", tokens(1000, 100))
    await granted(store, "b", tokens(1000, 100))
    await granted(store, "c", tokens(1000, 100))
    await store.settle("a", SPEND, b"charged")
    await store.release("b", "nothing, señor".encode())
    await store.settle("c", SPEND)
    assert await records(store) == [b"charged", "nothing, señor".encode()]


async def test_a_lease_that_is_gone_leaves_no_record(store: LimitStore, clock: FakeClock) -> None:
    """Nor does a second end: a record stands for a charge."""
    await granted(store, "a", tokens(1000, 100), ttl_s=30.0)
    clock.advance(30.0)
    assert await store.settle("a", SPEND, b"too late") is None
    assert not await store.release("never there", b"nothing")
    await granted(store, "b", tokens(1000, 100))
    await store.settle("b", SPEND, b"once")
    assert await store.settle("b", SPEND, b"twice") is None
    assert await records(store) == [b"once"]


async def test_records_come_oldest_first_and_to_one_carrier(
    store: LimitStore, clock: FakeClock
) -> None:
    for number in range(7):
        await granted(store, f"lease-{number}")
        await store.settle(f"lease-{number}", SPEND, b"%d" % number)
        clock.advance(0.001)
    batches = await asyncio.gather(records(store, 3), records(store, 3), records(store, 3))
    assert sorted(batches) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


async def test_what_is_not_forgotten_in_time_is_collected_again(
    store: LimitStore, clock: FakeClock
) -> None:
    for number in range(3):
        await granted(store, f"lease-{number}")
        await store.settle(f"lease-{number}", SPEND, b"%d" % number)
        clock.advance(0.001)
    first, *_ = await store.collect(10, 30.0)
    await store.forget((first.entry_id, "0"))
    clock.advance(29.9)
    assert await records(store) == []
    clock.advance(0.1)
    assert await records(store) == [b"1", b"2"]
    assert await records(store) == []
