"""Records that no limit store keeps, off the request's path: a bounded queue and one task.

They are of requests that were refused before they had a lease, which cost nothing, and of those
whose end the store did not take, because it failed. What was charged is in the store's outbox, with
the charge (`carrier.py`).

A request takes a place in the queue before it runs, and gives it back when it is over; both are a
few operations in memory. The task writes what is there at once, and then again every `interval_s`
at most: a process that is killed loses what came since the last write. A batch that
the store did not take is sent again until it does, which its request ids make harmless. When all
places are taken, because the store has failed for long, new requests are refused: none is served
without a record.

Knows no SQL, and no clock but through `sleep`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from itertools import islice
from types import TracebackType
from typing import Protocol, Self

from gateway.errors import Overloaded
from gateway.usage.record import UsageRecord

logger = logging.getLogger(__name__)

INTERVAL_S = 0.2
"""Between two writes. One takes 0.7 ms, and 16 us more for each record: at 5 a second and 1,000
requests a second 2% of a core.
"""

BATCH_RECORDS = 200
"""In one transaction, which holds the database for 4 ms."""

CAPACITY = 20_000
"""Places, for running requests and unwritten records; about 10 MB, and 20 s at 1,000 requests/s."""

RETRY_S = 1.0
"""Until the next try, when the store has failed."""

CLOSING_TRIES = 3

CLOSING_S = 1.0
"""For requests that were cut off to end, when the process does."""


class Sink(Protocol):
    """Where batches go."""

    async def append(self, records: Sequence[UsageRecord]) -> None:
        """Whatever it raises: the same batch may be sent again."""
        ...


class UsageWriter:
    """The queue of this process. An async context manager: entered once, closed once."""

    def __init__(
        self,
        sink: Sink,
        *,
        capacity: int = CAPACITY,
        interval_s: float = INTERVAL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sink = sink
        self._capacity = capacity
        self._interval_s = interval_s
        self._sleep = sleep
        self._num_open = 0  # requests that have a place and no record yet
        self._records: deque[UsageRecord] = deque()
        self._has_records = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._is_closed = False
        self._lock = asyncio.Lock()  # held by whoever writes
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write_for_ever(), name="usage-writer")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def num_unwritten(self) -> int:
        """Records that a kill would lose now."""
        return len(self._records)

    def begin(self) -> None:
        """Take a place for a request that is about to run. Each is followed by one `end`.

        Raises:
            Overloaded: there is none left.
        """
        if self._num_open + len(self._records) >= self._capacity:
            raise Overloaded("Usage cannot be recorded at the moment; try again.")
        self._num_open += 1
        self._all_ended.clear()

    def end(self) -> None:
        """A request is over, and its record somewhere: here, or with the charge."""
        self._num_open -= 1
        if not self._num_open:
            self._all_ended.set()

    def put(self, record: UsageRecord) -> None:
        """Leave the record of a request that no store keeps."""
        if self._is_closed:
            _tell(record)
            return
        self._records.append(record)
        self._has_records.set()

    async def flush(self) -> None:
        """Write all that is there.

        Raises:
            Exception: what the store raised; what it did not take is kept.
        """
        async with self._lock:
            while self._records:
                batch = tuple(islice(self._records, BATCH_RECORDS))
                await self._sink.append(batch)
                for _ in batch:
                    self._records.popleft()
            self._has_records.clear()

    async def aclose(self) -> None:
        """Wait a moment for requests that are ending, and write what is left. Idempotent.

        What the store still does not take goes to the log, a line each.
        """
        if self._writing is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await self._all_ended.wait()
        async with self._lock:  # a write that is under way ends first
            self._writing.cancel()
        await asyncio.wait([self._writing])
        self._writing = None
        self._is_closed = True
        for number in range(CLOSING_TRIES):
            try:
                await self.flush()
                break
            except Exception:  # the last door: what is left goes to the log
                logger.exception("cannot write usage records, try %d of the last", number + 1)
                await self._sleep(self._interval_s)
        for record in self._records:
            _tell(record)
        self._records.clear()

    async def _write_for_ever(self) -> None:
        while True:
            await self._has_records.wait()
            pause_s = self._interval_s
            try:
                await self.flush()
            except Exception:  # a background task's door: the next try may succeed
                pause_s = RETRY_S
                logger.exception(
                    "%d usage records are not written; the next try is in %s s",
                    len(self._records),
                    pause_s,
                )
            await self._sleep(pause_s)


def _tell(record: UsageRecord) -> None:
    """The last resort: whoever reads the log can still bill it."""
    logger.error("usage record not written: %s", json.dumps(asdict(record)))
