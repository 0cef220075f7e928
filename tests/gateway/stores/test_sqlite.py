"""What only the SQLite store promises: restarts, and files for the owner alone."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gateway.stores.base import Granted, Spend, StoreError
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite_ledger import PAGE_BYTES, Checkpoints, Ledger, open_connection
from tests.clock import FakeClock
from tests.contracts.stores import (
    TTL_S,
    granted,
    requests,
    settle,
    slots,
    tokens,
)

SPEND = Spend(input_tokens=20, output_tokens=10, cost_micros=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "limits.db"


async def test_a_restart_neither_forgives_nor_doubles(path: Path) -> None:
    """Case Q-RESET: used and reserved are there again, and the old lease can still be settled."""
    clock = FakeClock()
    store = await SqliteStore.open(path, clock=clock)
    await granted(store, "ended", requests(10), tokens(1000, 200))
    await settle(store, "ended", 150)
    await granted(store, "running", requests(10), tokens(1000, 300))
    await granted(store, "recorded")
    await store.release("recorded", b"nothing")
    before = await store.usage()
    await store.aclose()

    store = await SqliteStore.open(path, clock=clock)
    assert await store.usage() == before
    assert [entry.record for entry in await store.collect(10, 30.0)] == [b"nothing"]
    assert await settle(store, "running", 50)
    outcome = await granted(store, "next", requests(10), tokens(1000, 0))
    assert [state.remaining for state in outcome.states] == [7, 800]
    await store.aclose()


async def test_counters_that_count_no_more_leave_the_file(path: Path) -> None:
    clock = FakeClock()
    store = await SqliteStore.open(path, clock=clock)
    await granted(store, "a", requests(10), slots(1), ttl_s=30.0)
    await settle(store, "a", 0)
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
    with pytest.raises(StoreError, match="schema version 7, this Turnout knows 2; upgrade"):
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


# --- beside other processes -------------------------------------------------------------------


async def test_a_step_waits_in_a_thread_for_another_process_and_the_loop_goes_on(
    path: Path,
) -> None:
    store = await SqliteStore.open(path, clock=FakeClock())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        reserving = asyncio.create_task(store.reserve("a", (tokens(100, 30),), TTL_S))
        behind = asyncio.create_task(store.settle("a", SPEND))
        for _ in range(100):
            await asyncio.sleep(0)  # the loop is free
        assert not reserving.done()
        other.execute("COMMIT")
    assert isinstance(await reserving, Granted)
    assert await behind == ()  # in the order they came
    assert [one.used for one in await store.usage()] == [30]
    await store.aclose()


async def test_a_step_that_was_given_up_while_it_waited_can_be_ended(path: Path) -> None:
    """The release goes behind it, and finds what it reserved."""
    store = await SqliteStore.open(path, clock=FakeClock())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        reserving = asyncio.create_task(store.reserve("a", (tokens(100, 30),), TTL_S))
        await asyncio.sleep(0)
        reserving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reserving
        releasing = asyncio.create_task(store.release("a"))
        await asyncio.sleep(0)
        other.execute("COMMIT")
    assert await releasing
    assert await store.usage() == ()
    await store.aclose()


def test_a_checkpoint_brings_the_log_into_the_file(path: Path) -> None:
    ledger = Ledger(open_connection(path, busy_timeout_s=1.0), FakeClock())
    for number in range(100):
        ledger.reserve(f"lease-{number}", (tokens(10**9, 1),), TTL_S)
    before_bytes = path.stat().st_size
    checkpoints = Checkpoints(path)
    checkpoints.run()
    assert path.stat().st_size > before_bytes
    ledger.close()
    checkpoints.close()
    assert not path.with_name("limits.db-wal").exists()


def test_the_log_begins_anew_though_steps_never_pause(path: Path) -> None:
    """What a checkpoint did not reach stays in the log, which would grow without end."""
    ledger = Ledger(open_connection(path, busy_timeout_s=1.0), FakeClock())
    checkpoints = Checkpoints(path, max_log_pages=100)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:

        def leave(statement: str) -> None:
            if "RESTART" in statement:
                reader.execute("COMMIT")

        checkpoints._db.set_trace_callback(leave)
        for number in range(1000):
            ledger.reserve(f"lease-{number}", (tokens(10**9, 1),), TTL_S)
            if number % 20 == 10 and not reader.in_transaction:
                reader.execute("BEGIN")  # what is newer than this stays in the log
                reader.execute("SELECT * FROM clock").fetchall()
            if number % 20 == 19:
                checkpoints.run()
    log_bytes = path.with_name("limits.db-wal").stat().st_size
    assert log_bytes < 300 * PAGE_BYTES
    ledger.close()
    checkpoints.close()


# --- files of before --------------------------------------------------------------------------

VERSION_1 = """
CREATE TABLE clock (reading_us INTEGER NOT NULL, now_us INTEGER NOT NULL);
INSERT INTO clock VALUES (1000000000000, 1000000000000);
CREATE TABLE windows (
    counter TEXT NOT NULL, window INTEGER NOT NULL, window_us INTEGER NOT NULL,
    used INTEGER NOT NULL, reserved INTEGER NOT NULL, PRIMARY KEY (counter, window)
) WITHOUT ROWID;
CREATE INDEX windows_to_drop ON windows ((window + 2) * window_us) WHERE reserved = 0;
CREATE TABLE leases (
    lease_id TEXT PRIMARY KEY, expires_us INTEGER NOT NULL, held TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_expiry ON leases (expires_us);
INSERT INTO windows VALUES ('tpm/tokens/60/tenant:acme', 16666, 60000000, 70, 20);
INSERT INTO leases VALUES ('old', 2000000000000, '[]');
PRAGMA user_version = 1;
"""


async def test_a_file_of_version_1_is_upgraded_and_its_counts_kept(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(VERSION_1)
    store = await SqliteStore.open(path, clock=FakeClock(1_000_000.0))
    outcome = await granted(store, "a", tokens(100, 10))
    assert outcome.states[0].remaining == 20  # what was reserved came back with its leases
    await store.aclose()
    await (await SqliteStore.open(path, clock=FakeClock(1_000_000.0))).aclose()
