"""When each key was last used: noted on the request's path, written beside it.

A key is written at most once a minute by each process; keys that are due while a write is under
way go out together in the next. What cannot be written is lost, which costs nothing but its minute.
"""

from __future__ import annotations

import asyncio
import logging

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger(__name__)

PRECISION_S = 60.0
"""How old a stored time may be. A write takes 0.4 ms in a file: 1,000 keys, all in use, cost 0.7 %
of a core."""

MAX_KEYS = 4096  # whose time is remembered; over that all are due again


class LastUsed:
    """The times of last use, on their way into a table of keys. Closed once."""

    def __init__(self, engine: AsyncEngine, keys: sa.Table) -> None:
        self._engine = engine
        last_s = keys.c.last_used_s
        self._statement = (
            keys.update()
            .where(keys.c.key_id == sa.bindparam("id"))
            .where(sa.or_(last_s.is_(None), sa.bindparam("at_s") > last_s))
            .values(last_used_s=sa.bindparam("at_s"))
        )
        self._noted: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, key_id: str, now_s: float) -> bool:
        """A key was used. Waits for nothing; returns whether it was the first use in a minute."""
        noted_s = self._noted.get(key_id)
        if noted_s is not None and 0 <= now_s - noted_s < PRECISION_S:
            return False
        if len(self._noted) >= MAX_KEYS:
            self._noted.clear()
        self._noted[key_id] = self._due[key_id] = now_s
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="last-used")
        return True

    async def aclose(self) -> None:
        """Wait until everything noted is written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._due:
            # sorted: two processes that write the same rows in one order never block each other
            due = [{"id": key_id, "at_s": at_s} for key_id, at_s in sorted(self._due.items())]
            self._due = {}
            try:
                async with self._engine.begin() as connection:
                    await connection.execute(self._statement, due)
            except (OSError, SQLAlchemyError) as error:
                logger.warning("cannot write when %d keys were used: %s", len(due), error)
