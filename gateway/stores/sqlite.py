"""Limits in a SQLite file: the default. Survives restarts; several processes of one host share it.

Every operation is one `BEGIN IMMEDIATE` transaction: SQLite's write lock makes it atomic among
processes, and the clock is read while the lock is held, so readings come in order. It runs in the
event loop, since it is over in the time that a hop to a thread would take; only when another
process holds the lock, it waits for it in a thread. What waits for a disk is done there as well, by
a connection of its own: commits are not synced one by one (`synchronous = NORMAL`), and the
write-ahead log is brought into the file beside them. A killed process loses nothing, a power
failure at most the last moments.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.stores.base import Charge, Claim, Entry, Granted, Refused, Spend, StoreError, Usage
from gateway.stores.sqlite_ledger import Checkpoints, Ledger, is_busy, open_connection

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's transaction; one holds the lock for about 0.1 ms."""

STEPS_BETWEEN_CHECKPOINTS = 1_000
"""They write 6 MB to the log; `MAX_LOG_PAGES` says when it has to begin anew."""

_Result = TypeVar("_Result")


class SqliteStore:
    """A `LimitStore`. Made by `open`."""

    def __init__(self, path: Path, ledger: Ledger, checkpoints: Checkpoints) -> None:
        self._path = path
        self._ledger = ledger  # used here or in its thread, never in both at once
        self._checkpoints = checkpoints  # used in its thread alone
        self._ledgers_thread = ThreadPoolExecutor(1, "limit-store")
        self._checkpoints_thread = ThreadPoolExecutor(1, "limit-store-checkpoints")
        self._num_waiting = 0  # steps in the thread: those that come meanwhile go behind them
        self._num_steps = 0
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, clock: Callable[[], float]) -> SqliteStore:
        """Open the file, or create it.

        `clock` gives seconds from a point that all processes sharing the file agree on; a step
        back counts as no time. `time.monotonic` is the right one: it does not step forward either,
        and one host has only one; after a reboot it merely leaves out the time switched off.

        Raises:
            StoreError: the file cannot be used; the message says why.
        """

        def connect() -> tuple[Ledger, Checkpoints]:
            ledger = Ledger(open_connection(path, busy_timeout_s=BUSY_TIMEOUT_S), clock)
            return ledger, Checkpoints(path)

        try:
            return cls(path, *await asyncio.to_thread(connect))
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot open the limit store {path}: {error}") from error

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        """See `LimitStore.reserve`.

        Raises:
            ValueError: the lease id is in use, or two claims name the same counter.
        """
        return await self._run(lambda: self._ledger.reserve(lease_id, claims, ttl_s))

    async def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        """See `LimitStore.extend`."""
        return await self._run(lambda: self._ledger.extend(lease_ids, ttl_s))

    async def settle(
        self, lease_id: str, spend: Spend, record: bytes = b""
    ) -> tuple[Charge, ...] | None:
        """See `LimitStore.settle`."""
        return await self._run(lambda: self._ledger.settle(lease_id, spend, record))

    async def release(self, lease_id: str, record: bytes = b"") -> bool:
        """See `LimitStore.release`."""
        return await self._run(lambda: self._ledger.release(lease_id, record))

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        return await self._run(lambda: self._ledger.collect(most, hold_s))

    async def forget(self, entry_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        await self._run(lambda: self._ledger.forget(entry_ids))

    async def usage(self) -> tuple[Usage, ...]:
        """See `LimitStore.usage`."""
        return await self._run(self._ledger.usage)

    async def check(self) -> None:
        """See `LimitStore.check`."""
        await self._run(self._ledger.check)

    async def aclose(self) -> None:
        """Finish what waits and close the file. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._in_thread(self._close)
            self._ledgers_thread.shutdown()

    def _close(self) -> None:
        self._checkpoints_thread.shutdown()
        self._ledger.close()
        self._checkpoints.close()

    async def _run(self, step: Callable[[], _Result]) -> _Result:
        if self._closed:
            raise StoreError(f"the limit store {self._path} is closed")
        self._num_steps += 1
        if self._num_steps % STEPS_BETWEEN_CHECKPOINTS == 0:
            self._checkpoints_thread.submit(self._checkpoints.run)
        try:
            if not self._num_waiting:
                try:
                    return step()
                except sqlite3.OperationalError as error:
                    if not is_busy(error):
                        raise
            return await self._in_thread(lambda: self._ledger.patiently(BUSY_TIMEOUT_S, step))
        except sqlite3.Error as error:
            raise StoreError(f"the limit store {self._path} failed: {error}") from error

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Behind all that waits there. It is not given up when the caller is cancelled."""
        self._num_waiting += 1
        working = asyncio.get_running_loop().run_in_executor(self._ledgers_thread, work)
        working.add_done_callback(self._one_waits_less)
        return await asyncio.shield(working)

    def _one_waits_less(self, _: object) -> None:
        self._num_waiting -= 1
