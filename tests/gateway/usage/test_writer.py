"""The queue before the store: bounded, written in batches, and emptied before the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.errors import Overloaded
from gateway.usage.record import UsageRecord
from gateway.usage.schema import UsageError
from gateway.usage.store import Selection, UsageStore
from gateway.usage.writer import BATCH_RECORDS, INTERVAL_S, RETRY_S, UsageWriter
from tests.gateway.usage.examples import record, records


class Sleeper:
    """A sleep that ends when the test says so, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.began = asyncio.Event()
        self.ends = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.began.set()
        await self.ends.wait()
        self.ends.clear()
        self.began.clear()


class Failing:
    """A store that fails as often as it is told; after that it is the one beneath."""

    def __init__(self, store: UsageStore, times: int) -> None:
        self._store = store
        self.times = times
        self.batches: list[int] = []

    async def append(self, records: Sequence[UsageRecord]) -> None:
        self.batches.append(len(records))
        if self.times:
            self.times -= 1
            if self.times % 2:  # the commit went through, but nobody heard of it
                await self._store.append(records)
            raise UsageError("the disk is full")
        await self._store.append(records)


@pytest.fixture
async def store(tmp_path: Path) -> UsageStore:
    return await UsageStore.open(tmp_path)


async def ids(store: UsageStore) -> list[str]:
    return [one.request_id async for one in store.records(Selection())]


def finish(writer: UsageWriter, *ended: UsageRecord) -> None:
    for one in ended:
        writer.begin()
        writer.put(one)
        writer.end()


async def test_the_first_record_is_written_at_once_and_the_next_after_the_interval(
    store: UsageStore,
) -> None:
    sleep = Sleeper()
    async with UsageWriter(store, sleep=sleep) as writer:
        finish(writer, record(1))
        await sleep.began.wait()
        assert await ids(store) == ["1"]
        finish(writer, record(2), record(3))
        await asyncio.sleep(0)
        assert writer.num_unwritten == 2
        sleep.ends.set()
        while writer.num_unwritten:
            await asyncio.sleep(0)
        assert await ids(store) == ["1", "2", "3"]
        assert sleep.asked[0] == INTERVAL_S
    await store.aclose()


async def test_closing_writes_what_is_left(store: UsageStore) -> None:
    async with UsageWriter(store, sleep=Sleeper()) as writer:
        finish(writer, *records(3))
    assert len(await ids(store)) == 3
    await store.aclose()


async def test_closing_waits_for_requests_that_are_ending(store: UsageStore) -> None:
    async with UsageWriter(store, sleep=Sleeper()) as writer:
        writer.begin()
        asyncio.get_running_loop().call_soon(writer.put, record(1))
        asyncio.get_running_loop().call_soon(writer.end)
    assert await ids(store) == ["1"]
    await store.aclose()


async def test_what_a_failing_store_did_not_take_is_sent_again_and_written_once(
    store: UsageStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it had taken it, and failed to say so."""
    sleep = Sleeper()
    failing = Failing(store, times=2)
    async with UsageWriter(failing, sleep=sleep) as writer:
        finish(writer, *records(2))
        for _ in range(2):
            await sleep.began.wait()
            assert writer.num_unwritten == 2
            sleep.ends.set()
            await asyncio.sleep(0)
        while writer.num_unwritten:
            await asyncio.sleep(0)
    assert await ids(store) == ["0000", "0001"]
    assert sleep.asked[:2] == [RETRY_S, RETRY_S]
    assert failing.batches == [2, 2, 2]
    assert "2 usage records are not written" in caplog.text
    await store.aclose()


async def test_large_heaps_are_written_in_bounded_batches(store: UsageStore) -> None:
    counting = Failing(store, times=0)
    async with UsageWriter(counting, sleep=Sleeper()) as writer:
        finish(writer, *records(BATCH_RECORDS + 1))
        await writer.flush()
        assert counting.batches == [BATCH_RECORDS, 1]
    await store.aclose()


async def test_places_are_for_running_requests_and_unwritten_records_alike(
    store: UsageStore,
) -> None:
    async with UsageWriter(store, capacity=2, sleep=Sleeper()) as writer:
        writer.begin()
        writer.begin()
        with pytest.raises(Overloaded, match="Usage cannot be recorded"):
            writer.begin()
        writer.put(record(1))
        writer.end()
        with pytest.raises(Overloaded):
            writer.begin()
        await writer.flush()
        writer.begin()
        writer.put(record(2))
        writer.end()
        writer.put(record(3))
        writer.end()
    assert await ids(store) == ["1", "2", "3"]
    await store.aclose()


async def test_what_cannot_be_written_at_the_end_is_in_the_log_to_be_billed_by_hand(
    store: UsageStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def at_once(_: float) -> None:
        await asyncio.sleep(0)

    async with UsageWriter(Failing(store, times=-1), sleep=at_once) as writer:
        finish(writer, record(1))
    writer.begin()
    writer.put(record(2))
    writer.end()
    lines = [
        json.loads(message.partition(": ")[2])
        for message in caplog.messages
        if message.startswith("usage record not written")
    ]
    assert [UsageRecord(**line) for line in lines] == [record(1), record(2)]
    await store.aclose()
