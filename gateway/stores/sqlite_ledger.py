"""The SQLite file of limits: its tables, and each step as one transaction. Blocks.

Knows no event loop and no threads: `sqlite.py` says where it runs. A step reads and writes few
rows, which lie side by side, in five statements to reserve and five to settle, however many claims
there are. With four of them and a record both take 97 us together on a quiet core.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import orjson

from gateway.stores.base import (
    Charge,
    Claim,
    Dimension,
    Entry,
    Granted,
    Refused,
    Spend,
    StoreError,
    Usage,
)
from gateway.stores.create_once import create_once
from gateway.stores.window import Counts, Held, Window, decide, hold, microseconds, summarise

SCHEMA_VERSION = 2

LOOK_US = 1_000_000
"""Between two looks at the clock's row and at leases that expire, which take 40 us and 0.1 us for
each lease. In between every process reckons the time with its own readings, and all get the same,
for a host has one monotonic clock; and what expires before the next look was there at the last one,
or is this process's own, unless another's leases live for less than a second."""

PAGE_BYTES = 2048
"""Half of SQLite's own size: a commit writes whole pages to the log, and takes 15 us in place of
19."""

DROP_US = 60_000_000
"""Between two looks for windows that count no more: 1 ms for 10,000 of them."""

MAX_LOG_PAGES = 8_000
"""Of the log, 16 MB: longer, and steps wait until it is in the file, for 2 to 35 ms. Under steps
that never pause it stays below 27 MB so, and grew by 12 MB every 1,000 requests before; with two
such processes, where it may fail to get the lock, 73 MB were seen."""

LOCK_TIMEOUT_S = 1.0
"""How long a checkpoint that must end tries to get a word in between the steps."""

# `fades_us` is 0 for concurrency: kept while it is reserved. `held` is a JSON list of `Held`. A
# number of the outbox is the store's time in microseconds, or one more than the last: none is given
# twice, so who is late to forget a record drops no other.
_TABLES = f"""
CREATE TABLE clock (reading_us INTEGER NOT NULL, now_us INTEGER NOT NULL);
CREATE TABLE windows (
    counter TEXT NOT NULL,
    window INTEGER NOT NULL,
    window_us INTEGER NOT NULL,
    fades_us INTEGER NOT NULL,
    used INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    PRIMARY KEY (counter, window)
) WITHOUT ROWID;
CREATE TABLE leases (
    lease_id TEXT PRIMARY KEY,
    expires_us INTEGER NOT NULL,
    held BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE outbox (
    number INTEGER PRIMARY KEY,
    held_until_us INTEGER NOT NULL,
    record BLOB NOT NULL
);
PRAGMA user_version = {SCHEMA_VERSION};
"""

# Nobody runs while the file is upgraded: what leases of before held is given back.
_FROM_1 = f"""
BEGIN IMMEDIATE;
ALTER TABLE clock RENAME TO old_clock;
ALTER TABLE windows RENAME TO old_windows;
DROP TABLE leases;
{_TABLES}
INSERT INTO clock SELECT * FROM old_clock;
INSERT INTO windows
SELECT renamed(counter), window, window_us, (window + 2) * window_us, used, 0 FROM old_windows;
DROP TABLE old_clock;
DROP TABLE old_windows;
COMMIT;
"""

_RESERVE = """
INSERT INTO windows VALUES (?, ?, ?, ?, 0, ?)
ON CONFLICT DO UPDATE SET
    reserved = reserved + excluded.reserved, fades_us = max(fades_us, excluded.fades_us)
"""
_END = """
UPDATE windows SET reserved = reserved - ?, used = used + ? WHERE counter = ? AND window = ?
"""
_EXTEND = """
UPDATE leases SET expires_us = ? WHERE lease_id IN (SELECT value FROM json_each(?))
RETURNING lease_id
"""
_KEEP = """
INSERT INTO outbox VALUES (max(?, (SELECT coalesce(max(number), 0) FROM outbox) + 1), 0, ?)
"""
_COLLECT = """
UPDATE outbox SET held_until_us = ? WHERE number IN (
    SELECT number FROM outbox WHERE held_until_us <= ? ORDER BY number LIMIT ?
) RETURNING number, record
"""

_DIMENSIONS = {one.value: one for one in Dimension}  # calling the class takes six times as long

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process held the lock; the step did nothing then."""
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the rest says of what kind


def open_connection(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection to the file, which is made or upgraded if need be; it waits for no lock.

    Raises:
        StoreError: the file is of another version.
        sqlite3.Error, OSError: it cannot be used.
    """
    create_once(path, _fill)
    db = _connect(path, busy_timeout_s)
    try:
        db.execute(
            "PRAGMA wal_autocheckpoint = 0"
        )  # it would sync the disk in the middle of a step
        _upgrade(db, path)
        db.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        db.close()
        raise
    return db


def _connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def _upgrade(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == 1:
        db.create_function("renamed", 1, _renamed, deterministic=True)
        db.executescript(_FROM_1)
    elif version != SCHEMA_VERSION:
        raise StoreError(
            f"the limit store {path} has schema version {version}, this Turnout knows "
            f"{SCHEMA_VERSION}; upgrade Turnout, or move the file away to start at zero"
        )


def _renamed(counter: str) -> str:
    """What a counter of version 1 is called now."""
    limit, dimension, window, scope = counter.split("/", 3)
    return f"{scope}/{limit}/{dimension}/{window}"


def _fill(draft: Path) -> None:
    with closing(sqlite3.connect(draft, isolation_level=None)) as db:
        db.executescript(f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL;" + _TABLES)
        db.execute("INSERT INTO clock VALUES (0, 0)")


class Ledger:
    """The steps of a `LimitStore`. Used by one thread at a time; closes its connection."""

    def __init__(self, db: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock
        self._reading_us = 0
        self._now_us = 0  # the store's time at the last step
        self._look_us = 0  # when something may be due
        self._drop_us = 0  # when windows are dropped again

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    def patiently(self, timeout_s: float, step: Callable[[], _Result]) -> _Result:
        """Run a step that may wait for other processes."""
        self._db.execute(f"PRAGMA busy_timeout = {round(timeout_s * 1000)}")
        try:
            return step()
        finally:
            self._db.execute("PRAGMA busy_timeout = 0")

    def check(self) -> None:
        """Nothing, if the file can be read."""
        self._db.execute("SELECT now_us FROM clock").fetchone()

    def reserve(self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float) -> Granted | Refused:
        """See `LimitStore.reserve`."""
        with self._transaction() as now_us:
            held = hold(claims, now_us)
            outcome = decide(claims, self._counts(held), now_us)
            if isinstance(outcome, Granted):
                self._insert(lease_id, held, now_us + microseconds(ttl_s))
            return outcome

    def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        """See `LimitStore.extend`."""
        with self._transaction() as now_us:
            expires_us = now_us + microseconds(ttl_s)
            self._look_us = min(self._look_us, expires_us)
            alive = self._db.execute(_EXTEND, (expires_us, _as_json(lease_ids))).fetchall()
            return frozenset(lease_ids).difference(lease_id for (lease_id,) in alive)

    def settle(self, lease_id: str, spend: Spend, record: bytes) -> tuple[Charge, ...] | None:
        """See `LimitStore.settle`."""
        with self._transaction() as now_us:
            held = self._end(lease_id, spend, record)
            if held is None:
                return None
            return tuple(
                Charge(counter=one.counter, charged=one.charge(spend), used=self._used(one))
                for one in held
                if one.is_period and one.fades_us > now_us
            )

    def release(self, lease_id: str, record: bytes) -> bool:
        """See `LimitStore.release`."""
        with self._transaction():
            return self._end(lease_id, None, record) is not None

    def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        with self._transaction() as now_us:
            until_us = now_us + microseconds(hold_s)
            rows = self._db.execute(_COLLECT, (until_us, now_us, most)).fetchall()
        return tuple(Entry(entry_id=str(number), record=record) for number, record in sorted(rows))

    def forget(self, entry_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        with self._transaction():
            numbers = [(int(entry_id),) for entry_id in entry_ids]
            self._db.executemany("DELETE FROM outbox WHERE number = ?", numbers)

    def usage(self) -> tuple[Usage, ...]:
        """See `LimitStore.usage`."""
        with self._transaction() as now_us:
            rows = self._db.execute("SELECT * FROM windows").fetchall()
        return summarise((_window(row) for row in rows), now_us)

    @contextmanager
    def _transaction(self) -> Generator[int]:
        """One atomic step; gives the store's time, by which expired leases are reaped already."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._advance()
            yield self._now_us
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
                self._look_us = 0  # what was due is still to be done

    def _advance(self) -> None:
        """Read the clock, under the lock; a step back counts as no time. Do what is due."""
        reading_us = microseconds(self._clock())
        went_back = reading_us < self._reading_us
        self._now_us += max(0, reading_us - self._reading_us)
        self._reading_us = reading_us
        if went_back or self._now_us >= self._look_us:
            self._set_clock(reading_us)
            self._reap()
            if self._now_us >= self._drop_us:
                query = "DELETE FROM windows WHERE reserved = 0 AND fades_us <= ?"
                self._db.execute(query, (self._now_us,))
                self._drop_us = self._now_us + DROP_US

    def _set_clock(self, reading_us: int) -> None:
        """Agree with other processes, and with those of before a restart, on the time."""
        last_us, now_us = self._db.execute("SELECT reading_us, now_us FROM clock").fetchone()
        self._now_us = max(self._now_us, now_us + max(0, reading_us - last_us))
        update = "UPDATE clock SET reading_us = ?, now_us = ?"
        self._db.execute(update, (reading_us, self._now_us))

    def _reap(self) -> None:
        """Release what has expired; look again when the next one does, if not before."""
        query = "SELECT lease_id FROM leases WHERE expires_us <= ?"
        for (lease_id,) in self._db.execute(query, (self._now_us,)).fetchall():
            self._end(lease_id, None, b"")
        (earliest_us,) = self._db.execute("SELECT min(expires_us) FROM leases").fetchone()
        self._look_us = min(self._now_us + LOOK_US, earliest_us or self._now_us + LOOK_US)

    def _counts(self, held: Sequence[Held]) -> list[Counts]:
        """What stands against each claim."""
        query = _select_windows(len(held))
        rows = self._db.execute(query, [one.counter for one in held]).fetchall()
        found = {(counter, window): (used, reserved) for counter, window, used, reserved in rows}
        counts: list[Counts] = []
        for one in held:
            used, reserved = found.get((one.counter, one.window), (0, 0))
            previous = sum(found.get((one.counter, one.window - 1), (0, 0)))
            counts.append(Counts(current=used + reserved, previous=previous, reserved=reserved))
        return counts

    def _insert(self, lease_id: str, held: tuple[Held, ...], expires_us: int) -> None:
        try:
            self._db.execute(
                "INSERT INTO leases VALUES (?, ?, ?)", (lease_id, expires_us, _pack(held))
            )
        except sqlite3.IntegrityError as error:
            raise ValueError(f"lease id {lease_id!r} is in use") from error
        self._look_us = min(self._look_us, expires_us)
        self._db.executemany(
            _RESERVE,
            [(one.counter, one.window, one.window_us, one.fades_us, one.cost) for one in held],
        )

    def _end(self, lease_id: str, spend: Spend | None, record: bytes) -> tuple[Held, ...] | None:
        """Settle a lease, or release it if nothing was spent; what it held, None if it is gone."""
        row = self._db.execute(
            "DELETE FROM leases WHERE lease_id = ? RETURNING held", (lease_id,)
        ).fetchone()
        if row is None:
            return None
        held = _unpack(row[0])
        self._db.executemany(
            _END,
            [
                (one.cost, one.charge(spend) if spend else 0, one.counter, one.window)
                for one in held
            ],
        )
        if record:
            self._db.execute(_KEEP, (self._now_us, record))
        return held

    def _used(self, held: Held) -> int:
        query = "SELECT used FROM windows WHERE counter = ? AND window = ?"
        (used,) = self._db.execute(query, (held.counter, held.window)).fetchone()
        return int(used)


class Checkpoints:
    """Brings the write-ahead log into the file, which waits for the disk. Used by one thread."""

    def __init__(self, path: Path, *, max_log_pages: int = MAX_LOG_PAGES) -> None:
        self._db = _connect(path, LOCK_TIMEOUT_S)
        self._max_log_pages = max_log_pages

    def run(self) -> None:
        """Once. Steps go on meanwhile; only if they have made the log long, they wait for its end.

        For the log begins anew only when all of it is in the file, and steps that never pause
        always add to it.
        """
        try:
            ((_, num_pages, _),) = self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if num_pages > self._max_log_pages:
                self._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        except sqlite3.Error as error:  # the steps go on, in a longer log
            logger.warning("the log of the limit store was not brought into the file: %s", error)

    def close(self) -> None:
        """Bring the whole log into the file, if nobody else uses it."""
        self._db.close()


@functools.cache
def _select_windows(number: int) -> str:
    places = ", ".join("?" * number)
    return f"SELECT counter, window, used, reserved FROM windows WHERE counter IN ({places})"


def _window(row: tuple[str, int, int, int, int, int]) -> Window:
    counter, window, window_us, fades_us, used, reserved = row
    return Window(
        counter=counter,
        window=window,
        window_us=window_us,
        fades_us=fades_us,
        used=used,
        reserved=reserved,
    )


def _pack(held: tuple[Held, ...]) -> bytes:
    return orjson.dumps(list(map(tuple, held)))


def _unpack(data: bytes) -> tuple[Held, ...]:
    return tuple(
        [Held(counter, _DIMENSIONS[name], *rest) for counter, name, *rest in orjson.loads(data)]
    )


def _as_json(items: tuple[str, ...]) -> str:
    return orjson.dumps(items).decode()
