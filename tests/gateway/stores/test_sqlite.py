"""What only the SQLite store promises: restarts, and files for the owner alone."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gateway.stores.base import StoreError
from gateway.stores.sqlite import SqliteStore
from tests.clock import FakeClock
from tests.contracts.stores import TTL_S, granted, requests, slots, tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "limits.db"


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
