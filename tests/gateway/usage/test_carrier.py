"""From the outbox to the database: everything, once, whoever is killed on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.stores.base import Spend
from gateway.stores.memory import MemoryStore
from gateway.usage.carrier import BATCH_RECORDS, HOLD_S, UsageCarrier
from gateway.usage.record import UsageRecord, from_bytes, to_bytes
from gateway.usage.schema import UsageError
from gateway.usage.store import Selection, UsageStore
from tests.clock import FakeClock
from tests.gateway.usage.examples import record

SPEND = Spend(input_tokens=10, output_tokens=5, cost_micros=7)


class Deaf:
    """A database that does not answer while `is_deaf`."""

    def __init__(self, store: UsageStore) -> None:
        self._store = store
        self.is_deaf = True

    async def append(self, records: Sequence[UsageRecord]) -> None:
        if self.is_deaf:
            raise UsageError("the disk is full")
        await self._store.append(records)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def outbox(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
async def usage(tmp_path: Path) -> AsyncIterator[UsageStore]:
    store = await UsageStore.open(tmp_path)
    yield store
    await store.aclose()


async def ids(store: UsageStore) -> list[str]:
    return [one.request_id async for one in store.records(Selection())]


async def settle(outbox: MemoryStore, *numbers: int, data: bytes | None = None) -> None:
    for number in numbers:
        await outbox.reserve(str(number), (), 30.0)
        kept = to_bytes(record(number)) if data is None else data
        assert await outbox.settle(str(number), SPEND, kept) is not None


async def test_a_record_arrives_as_it_was(outbox: MemoryStore, usage: UsageStore) -> None:
    await settle(outbox, 1)
    await UsageCarrier(outbox, usage).carry()
    assert [one async for one in usage.records(Selection())] == [record(1)]
    assert await outbox.collect(10, HOLD_S) == ()


async def test_more_than_a_batch_is_carried_at_once(outbox: MemoryStore, usage: UsageStore) -> None:
    await settle(outbox, *range(2 * BATCH_RECORDS + 1))
    await UsageCarrier(outbox, usage).carry()
    assert len(await ids(usage)) == 2 * BATCH_RECORDS + 1


async def test_what_the_database_did_not_take_stays_and_is_carried_later(
    outbox: MemoryStore, usage: UsageStore, clock: FakeClock
) -> None:
    """Q-COUNTER-DOUBLE: and once."""
    database = Deaf(usage)
    carrier = UsageCarrier(outbox, database)
    await settle(outbox, 1)
    with pytest.raises(UsageError):
        await carrier.carry()
    database.is_deaf = False
    clock.advance(HOLD_S)
    await carrier.carry()
    await carrier.carry()
    assert await ids(usage) == ["1"]


async def test_what_a_killed_process_had_begun_to_carry_the_next_one_carries(
    outbox: MemoryStore, usage: UsageStore, clock: FakeClock
) -> None:
    await settle(outbox, 1, 2)
    await usage.append([from_bytes(one.record) for one in await outbox.collect(1, HOLD_S)])
    await UsageCarrier(outbox, usage).carry()  # the first is still the other's
    assert await ids(usage) == ["1", "2"]
    clock.advance(HOLD_S)
    await UsageCarrier(outbox, usage).carry()
    assert await ids(usage) == ["1", "2"]
    clock.advance(HOLD_S)
    assert await outbox.collect(10, HOLD_S) == ()


async def test_a_record_that_cannot_be_read_holds_up_nobody(
    outbox: MemoryStore, usage: UsageStore, caplog: pytest.LogCaptureFixture
) -> None:
    await settle(outbox, 1, data=b'{"request_id": "of another version"}')
    await settle(outbox, 2)
    await UsageCarrier(outbox, usage).carry()
    assert await ids(usage) == ["2"]
    assert "of another version" in caplog.text


async def test_records_are_carried_in_the_background_and_at_the_end(
    outbox: MemoryStore, usage: UsageStore
) -> None:
    asleep, never = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        asleep.set()
        await never.wait()

    await settle(outbox, 1)
    async with UsageCarrier(outbox, usage, sleep=sleep):
        await asleep.wait()
        assert await ids(usage) == ["1"]
        await settle(outbox, 2)
    assert await ids(usage) == ["1", "2"]


async def test_a_database_that_is_gone_at_the_end_loses_nothing(
    outbox: MemoryStore, usage: UsageStore, clock: FakeClock
) -> None:
    async with UsageCarrier(outbox, Deaf(usage)):
        await settle(outbox, 1)
    clock.advance(HOLD_S)
    await UsageCarrier(outbox, usage).carry()
    assert await ids(usage) == ["1"]
