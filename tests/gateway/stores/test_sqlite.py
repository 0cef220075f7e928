"""What only the SQLite store promises: restarts, several processes, files for the owner alone."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.stores.base import StoreError
from gateway.stores.sqlite import SqliteStore
from tests.clock import FakeClock
from tests.contracts.stores import TTL_S, granted, refused, requests, slots, tokens

ROOT = Path(__file__).parents[3]

PROCESS = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.stores.base import Granted
from gateway.stores.sqlite import SqliteStore
from tests.contracts.stores import slots, tokens

async def main(path, name):
    store = await SqliteStore.open(path, clock=lambda: 1000.0)
    if name == "killed":
        await store.reserve("lost", (tokens(100, 40), slots(1)), 30.0)
        os.kill(os.getpid(), signal.SIGKILL)
    outcomes = await asyncio.gather(
        *(store.reserve(f"{name}-{i}", (tokens(100, 7),), 30.0) for i in range(50))
    )
    await store.aclose()
    sys.stdout.write(str(sum(isinstance(outcome, Granted) for outcome in outcomes)))

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def run_process(path: Path, name: str) -> tuple[int | None, bytes]:
    """Run the program above against `path`; its exit code and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, str(path), name, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "limits.db"


async def test_three_processes_admit_together_what_one_may(path: Path) -> None:
    """Case Q-TPM-RACE: they also create the file at the same moment."""
    ended = await asyncio.gather(*(run_process(path, f"process-{i}") for i in range(3)))
    assert [code for code, _ in ended] == [0, 0, 0]
    assert sum(int(output) for _, output in ended) == 14


async def test_a_killed_process_loses_its_lease_when_it_expires(path: Path) -> None:
    code, _ = await run_process(path, "killed")
    assert code == -signal.SIGKILL
    clock = FakeClock(1029.0)
    store = await SqliteStore.open(path, clock=clock)
    assert (await refused(store, slots(1))).by == slots(1)
    clock.advance(1.0)
    assert await store.usage() == ()
    await store.aclose()


async def test_a_restart_neither_forgives_nor_doubles(path: Path) -> None:
    """Case Q-RESET: used and reserved are there again, and the old lease can still be settled."""
    clock = FakeClock()
    store = await SqliteStore.open(path, clock=clock)
    await granted(store, "ended", requests(10), tokens(1000, 200))
    await store.settle("ended", tokens=150)
    await granted(store, "running", requests(10), tokens(1000, 300))
    before = await store.usage()
    await store.aclose()

    store = await SqliteStore.open(path, clock=clock)
    assert await store.usage() == before
    assert await store.settle("running", tokens=50)
    outcome = await granted(store, "next", requests(10), tokens(1000, 0))
    assert [state.remaining for state in outcome.states] == [7, 800]
    await store.aclose()


async def test_counters_that_count_no_more_leave_the_file(path: Path) -> None:
    clock = FakeClock()
    store = await SqliteStore.open(path, clock=clock)
    await granted(store, "a", requests(10), slots(1), ttl_s=30.0)
    await store.settle("a", tokens=0)
    clock.advance(120.0)
    await granted(store, "b", tokens(1000, 1))
    await store.aclose()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT counter FROM windows").fetchall() == [(tokens(1000, 1).counter,)]


async def test_the_files_are_the_owners_alone(path: Path) -> None:
    store = await SqliteStore.open(path, clock=FakeClock())
    await granted(store, "a", requests(1))
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert modes == {"limits.db": 0o600, "limits.db-wal": 0o600, "limits.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.aclose()


async def test_a_newer_schema_is_refused_with_a_remedy(path: Path) -> None:
    await (await SqliteStore.open(path, clock=FakeClock())).aclose()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="schema version 7, this Turnout knows 1; upgrade"):
        await SqliteStore.open(path, clock=FakeClock())


@pytest.fixture
def shopping_list(tmp_path: Path) -> Path:
    path = tmp_path / "list.txt"
    path.write_text("flour, eggs, sugar\n" * 100)
    return path


async def test_a_file_that_is_no_database_is_refused_by_name(shopping_list: Path) -> None:
    with pytest.raises(StoreError, match=r"list\.txt: file is not a database"):
        await SqliteStore.open(shopping_list, clock=FakeClock())


async def test_a_damaged_store_raises_its_own_error_and_leaves_no_transaction_open(
    path: Path,
) -> None:
    store = await SqliteStore.open(path, clock=FakeClock())
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE windows RENAME TO elsewhere")
        with pytest.raises(StoreError, match="no such table: windows"):
            await store.reserve("a", (requests(1),), TTL_S)
        db.execute("ALTER TABLE elsewhere RENAME TO windows")
    await granted(store, "a", requests(1))
    await store.aclose()


async def test_a_closed_store_says_so_and_closes_only_once(path: Path) -> None:
    store = await SqliteStore.open(path, clock=FakeClock())
    await store.aclose()
    await store.aclose()
    with pytest.raises(StoreError, match="is closed"):
        await store.usage()
