"""The store on a real file: written once, summed right, shared by processes, kept over a kill."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import sys
from collections import Counter
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.usage.record import UsageRecord
from gateway.usage.report import QUARTER_S, Dimension
from gateway.usage.schema import UsageError
from gateway.usage.store import Selection, UsageStore
from tests.gateway.usage.examples import RECORD, record, records

ROOT = Path(__file__).parents[3]

PROCESS = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.usage.store import UsageStore
from gateway.usage.writer import UsageWriter
from tests.gateway.usage.examples import record

async def main(home, name):
    store = await UsageStore.open(home)
    async with UsageWriter(store) as writer:
        for i in range(200):
            writer.begin()
            writer.put(record(f"{name}-{i}"))
            writer.end()
            await asyncio.sleep(0)
            if i == 100:
                await writer.flush()
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    await store.aclose()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def run_process(home: Path, name: str) -> int | None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, str(home), name, cwd=ROOT
    )
    return await process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


ALL = Selection()


async def everything(store: UsageStore, selection: Selection = ALL) -> list[UsageRecord]:
    async with aclosing(store.records(selection)) as found:
        return [one async for one in found]


async def test_a_record_comes_back_as_it_went_in(home: Path) -> None:
    store = await UsageStore.open(home)
    refused = record("1", first_token_s=None, cost_micros=None, estimated=True, status=429)
    await store.append([RECORD, refused])
    assert await everything(store) == [RECORD, refused]
    await store.aclose()


async def test_a_record_is_written_once_however_often_it_is_sent(home: Path) -> None:
    """Q-COUNTER-DOUBLE: and new ones beside it are written."""
    store = await UsageStore.open(home)
    await store.append(records(3))
    await store.append(records(5))
    assert await everything(store) == records(5)
    await store.aclose()


async def test_two_processes_write_to_one_file(home: Path) -> None:
    """They also make it at the same moment."""
    codes = await asyncio.gather(*(run_process(home, f"process-{i}") for i in range(2)))
    assert codes == [0, 0]
    store = await UsageStore.open(home)
    found = Counter(one.request_id.rpartition("-")[0] for one in await everything(store))
    assert found == {"process-0": 200, "process-1": 200}
    await store.aclose()


async def test_a_killed_process_has_lost_only_what_ended_since_the_last_write(home: Path) -> None:
    assert await run_process(home, "killed") == -signal.SIGKILL
    store = await UsageStore.open(home)
    written = {one.request_id for one in await everything(store)}
    assert {f"killed-{i}" for i in range(101)} <= written
    await store.append([record("after")])
    await store.aclose()


async def test_records_are_selected_by_time_tenant_and_model(home: Path) -> None:
    store = await UsageStore.open(home)
    begin_s = RECORD.time_s
    await store.append(
        [
            record("a", time_s=begin_s),
            record("b", time_s=begin_s + 10),
            record("c", time_s=begin_s + 10, tenant="globex"),
            record("d", time_s=begin_s + 10, model="big"),
            record("e", time_s=begin_s + 20),
        ]
    )
    window = Selection(since_s=begin_s + 10, until_s=begin_s + 20)
    for selection, expected in (
        (Selection(), "abcde"),
        (Selection(since_s=begin_s + 10), "bcde"),
        (Selection(until_s=begin_s + 10), "a"),
        (window, "bcd"),
        (replace(window, tenant="acme"), "bd"),
        (replace(window, tenant="acme", model="echo"), "b"),
    ):
        found = "".join(one.request_id for one in await everything(store, selection))
        assert found == expected
    await store.aclose()


async def test_sums_are_those_of_the_records(home: Path) -> None:
    store = await UsageStore.open(home)
    day_s = 1_796_083_200.0
    await store.append(
        [
            record("a", time_s=day_s),
            record("b", time_s=day_s + QUARTER_S - 0.000_001, estimated=True),
            record("c", time_s=day_s + QUARTER_S, cost_micros=None),
            record("d", time_s=day_s, tenant="globex", currency="USD", cost_micros=10**15),
        ]
    )
    by = (Dimension.TENANT, Dimension.DAY, Dimension.KEY)
    found = {(s.names, s.quarter, s.currency): s.amounts for s in await store.sums(by, Selection())}
    first = int(day_s) // QUARTER_S
    assert set(found) == {
        (("acme", "key_1"), first, "EUR"),
        (("acme", "key_1"), first + 1, "EUR"),
        (("globex", "key_1"), first, "USD"),
    }
    two = found[("acme", "key_1"), first, "EUR"]
    assert (two.num_requests, two.prompt_tokens, two.completion_tokens) == (2, 20, 10)
    assert (two.cached_tokens, two.estimated_tokens, two.cost_micros) == (8, 15, 14)
    unpriced = found[("acme", "key_1"), first + 1, "EUR"]
    assert (unpriced.num_unpriced, unpriced.cost_micros) == (1, 0)
    assert found[("globex", "key_1"), first, "USD"].cost_micros == 10**15
    await store.aclose()


async def test_sums_without_a_time_are_one_for_each_name(home: Path) -> None:
    store = await UsageStore.open(home)
    await store.append([record(i, time_s=RECORD.time_s + i * 86_400) for i in range(3)])
    (one,) = await store.sums((Dimension.PLAN, Dimension.MODEL, Dimension.BACKEND), Selection())
    assert (one.names, one.quarter) == (("demo", "echo", "first"), None)
    assert one.amounts.num_requests == 3
    await store.aclose()


async def test_the_oldest_go_first_and_no_more_at_once_than_said(home: Path) -> None:
    store = await UsageStore.open(home)
    await store.append(records(10))
    before_s = RECORD.time_s + 5
    assert await store.delete_before(before_s, limit=3) == 3
    assert await store.delete_before(before_s, limit=3) == 2
    assert await store.delete_before(before_s, limit=3) == 0
    assert await everything(store) == records(10)[5:]
    await store.aclose()


async def test_who_reads_slowly_holds_up_neither_writers_nor_the_file(home: Path) -> None:
    """The write-ahead log can be emptied meanwhile, and what was written since is read, too."""
    reading, writing = await UsageStore.open(home), await UsageStore.open(home)
    await writing.append(records(2500))
    later = record("new", time_s=RECORD.time_s + 9999)
    async with aclosing(reading.records(Selection())) as found:
        first = await anext(found)
        await writing.append([later])
        with closing(sqlite3.connect(home / "usage.db")) as connection:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        rest = [one async for one in found]
    assert not is_busy
    assert [first, *rest] == [*records(2500), later]
    await reading.aclose()
    await writing.aclose()


async def test_the_files_are_the_owners_alone(home: Path) -> None:
    store = await UsageStore.open(home)
    await store.append(records(1))
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(home)}
    assert modes == {"usage.db": 0o600, "usage.db-wal": 0o600, "usage.db-shm": 0o600}
    await store.aclose()


async def test_a_newer_schema_is_refused_with_a_remedy(home: Path) -> None:
    await (await UsageStore.open(home)).aclose()
    with closing(sqlite3.connect(home / "usage.db")) as db:
        db.execute("UPDATE schema_version SET version = 7")
        db.commit()
    with pytest.raises(UsageError, match="schema version 7, this Turnout knows 1; upgrade"):
        await UsageStore.open(home)


@pytest.fixture
def shopping_list(home: Path) -> Path:
    home.mkdir()
    (home / "usage.db").write_text("flour, eggs, sugar\n" * 100)
    return home


async def test_a_file_that_is_no_database_is_refused_by_name(shopping_list: Path) -> None:
    with pytest.raises(UsageError, match=r"usage\.db: .*file is not a database"):
        await UsageStore.open(shopping_list)


async def test_a_damaged_store_raises_its_own_error_and_goes_on_when_it_is_mended(
    home: Path,
) -> None:
    store = await UsageStore.open(home)
    with closing(sqlite3.connect(home / "usage.db")) as db:
        db.execute("ALTER TABLE usage RENAME TO elsewhere")
        with pytest.raises(UsageError, match="cannot write 1 usage records"):
            await store.append(records(1))
        with pytest.raises(UsageError, match="cannot delete old usage records"):
            await store.delete_before(0.0, limit=1)
        db.execute("ALTER TABLE elsewhere RENAME TO usage")
    await store.append(records(1))
    assert await everything(store) == records(1)
    await store.aclose()
