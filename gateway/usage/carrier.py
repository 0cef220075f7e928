"""Carries records from the outbox of the limit store to the database of usage.

The step that charges a request leaves its record in the outbox, so neither is ever without the
other. From there any process carries it on, of this host or another: what a killed one had left, or
had begun to carry, the next one takes up. A record that is carried twice is written once.

Knows no counters, and nothing of reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from gateway.stores.base import Entry
from gateway.usage.record import UsageRecord, from_bytes
from gateway.usage.writer import Sink

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
"""How late a report may be; nothing is lost meanwhile. A look into an empty outbox takes 0.1 ms."""

BATCH_RECORDS = 200
"""In one transaction, which holds the database for 4 ms."""

HOLD_S = 30.0
"""Until another process may carry what this one took and has not written: a batch takes 10 ms, and
waits 5 s at most for the database."""


class Outbox(Protocol):
    """The part of a `LimitStore` that is needed here."""

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        ...

    async def forget(self, entry_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        ...


class UsageCarrier:
    """An async context manager: entered once, closed once. It owns neither end."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._outbox = outbox
        self._sink = sink
        self._sleep = sleep
        self._carrying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._carrying = asyncio.create_task(self._carry_for_ever(), name="usage-carrier")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def carry(self) -> None:
        """Carry all that is there and that nobody else is carrying.

        Raises:
            Exception: what one of the ends raised; the records are still in the outbox.
        """
        is_more = True
        while is_more:
            entries = await self._outbox.collect(BATCH_RECORDS, HOLD_S)
            if records := _read(entries):
                await self._sink.append(records)
            if entries:
                await self._outbox.forget(tuple(entry.entry_id for entry in entries))
            is_more = len(entries) == BATCH_RECORDS

    async def aclose(self) -> None:
        """Carry what is left. What cannot be carried now waits for the next process. Idempotent."""
        if self._carrying is None:
            return
        self._carrying.cancel()
        await asyncio.wait([self._carrying])
        self._carrying = None
        try:
            await self.carry()
        except Exception:  # the last door: nothing is lost
            logger.exception("usage records stay in the limit store until the next start")

    async def _carry_for_ever(self) -> None:
        while True:
            try:
                await self.carry()
            except Exception:  # a background task's door: the next try may succeed
                logger.exception("usage records stay in the limit store for now")
            await self._sleep(INTERVAL_S)


def _read(entries: Sequence[Entry]) -> list[UsageRecord]:
    """What can be read; what cannot goes to the log, where it can still be billed from."""
    records: list[UsageRecord] = []
    for entry in entries:
        try:
            records.append(from_bytes(entry.record))
        except ValueError as error:
            text = entry.record.decode(errors="replace")
            logger.error("usage record not written: %s: %s", error, text)
    return records
