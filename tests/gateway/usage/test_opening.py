"""Usage as the gateway opens and closes it."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

from gateway.app import open_usage
from gateway.config import Settings
from gateway.stores.memory import MemoryStore
from gateway.usage.store import Selection, UsageStore
from tests.gateway.usage.examples import record

DAY_S = 86_400


async def ids(store: UsageStore) -> list[str]:
    async with aclosing(store.records(Selection())) as found:
        return [one.request_id async for one in found]


async def test_records_are_kept_for_ever_unless_the_operator_says_for_how_long(
    tmp_path: Path,
) -> None:
    now_s = time.time()
    store = await UsageStore.open(tmp_path)
    await store.append([record("old", time_s=now_s - 3 * DAY_S), record("new", time_s=now_s)])
    async with open_usage(Settings(home=tmp_path), MemoryStore(clock=time.time)):
        pass
    assert await ids(store) == ["old", "new"]
    async with open_usage(
        Settings(home=tmp_path, usage_retention=timedelta(days=2)), MemoryStore(clock=time.time)
    ):
        async with asyncio.timeout(10):
            while await ids(store) != ["new"]:
                await asyncio.sleep(0)
    await store.aclose()


async def test_what_is_in_the_queue_is_written_before_the_database_is_closed(
    tmp_path: Path,
) -> None:
    async with open_usage(Settings(home=tmp_path), MemoryStore(clock=time.time)) as (_, usage):
        for number in range(3):
            usage.begin()
            usage.put(record(number))
            usage.end()
    store = await UsageStore.open(tmp_path)
    assert await ids(store) == ["0", "1", "2"]
    await store.aclose()


async def test_whoever_reads_may_stop_early(tmp_path: Path) -> None:
    store = await UsageStore.open(tmp_path)
    await store.append([record(f"{number:04}") for number in range(2500)])
    async with aclosing(store.records(Selection())) as found:
        assert (await anext(found)).request_id == "0000"
    await store.append([record("next")])
    assert len(await ids(store)) == 2501
    await store.aclose()
