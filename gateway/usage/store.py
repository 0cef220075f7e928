"""Usage records in a SQL database: appended in batches, summed, streamed, and deleted when old.

A record is written once however often it is sent: its request id is the key. Knows neither when to
write nor what is asked of a report.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.usage.record import UsageRecord
from gateway.usage.report import QUARTER_S, TIMES, Amounts, Dimension, Sum
from gateway.usage.schema import (
    FILE_NAME,
    MICROSECONDS,
    UsageError,
    microseconds,
    open_engine,
    record_of,
    row_of,
    usage,
)

ROWS_AT_A_TIME = 1000
"""Held in memory while records are streamed; about 1 MB."""

# a literal: PostgreSQL takes two parameters for two values, and so a grouped term for another one
_QUARTER = usage.c.time_us // sa.literal_column(str(QUARTER_S * MICROSECONDS), sa.BigInteger)

_COLUMNS = {
    Dimension.TENANT: usage.c.tenant,
    Dimension.MODEL: usage.c.model,
    Dimension.BACKEND: usage.c.backend,
    Dimension.KEY: usage.c.key_id,
    Dimension.PLAN: usage.c.plan,
}

_TOKENS = usage.c.prompt_tokens + usage.c.completion_tokens

_AMOUNTS = (
    sa.func.count().label("num_requests"),
    *(
        sa.cast(sa.func.coalesce(sa.func.sum(expression), 0), sa.BigInteger).label(name)
        for name, expression in (
            ("prompt_tokens", usage.c.prompt_tokens),
            ("cached_tokens", usage.c.cached_tokens),
            ("completion_tokens", usage.c.completion_tokens),
            ("estimated_tokens", sa.case((usage.c.estimated, _TOKENS), else_=0)),
            ("cost_micros", usage.c.cost_micros),
            ("num_unpriced", sa.case((usage.c.cost_micros.is_(None), 1), else_=0)),
        )
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records are asked for. `until_s` is exclusive."""

    since_s: float | None = None
    until_s: float | None = None
    tenant: str | None = None
    model: str | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """As SQL."""
        conditions: list[sa.ColumnElement[bool]] = []
        if self.since_s is not None:
            conditions.append(usage.c.time_us >= microseconds(self.since_s))
        if self.until_s is not None:
            conditions.append(usage.c.time_us < microseconds(self.until_s))
        if self.tenant is not None:
            conditions.append(usage.c.tenant == self.tenant)
        if self.model is not None:
            conditions.append(usage.c.model == self.model)
        return conditions


class UsageStore:
    """All records. Made by `open`, used concurrently and by several processes, closed once."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert = _insert_new(engine.dialect.name)

    @classmethod
    async def open(cls, home: Path) -> UsageStore:
        """Open the database in `home`, or make it.

        Raises:
            UsageError: it cannot be used; the message says why.
        """
        try:
            return cls(await asyncio.to_thread(open_engine, home))
        except (OSError, SQLAlchemyError) as error:
            raise UsageError(f"cannot open {home / FILE_NAME}: {error}") from error

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._engine.dispose()

    async def append(self, records: Sequence[UsageRecord]) -> None:
        """Write all of these or none. Those that are there already stay as they are.

        Raises:
            UsageError: the database failed; whether they were written is not known.
        """
        rows = [row_of(record) for record in records]
        async with self._connect(f"write {len(rows)} usage records") as connection:
            await connection.execute(self._insert, rows)

    async def sums(self, by: Sequence[Dimension], selection: Selection) -> tuple[Sum, ...]:
        """The selected records added up, a sum for each combination of `by`, quarter of an hour (if
        `by` has a time) and currency; in no order.

        Raises:
            UsageError: the database failed.
        """
        names = [_COLUMNS[one] for one in by if one not in TIMES]
        quarter = _QUARTER if set(by) & set(TIMES) else sa.null()
        columns = (quarter.label("quarter"), usage.c.currency, *names)
        grouped = columns if set(by) & set(TIMES) else columns[1:]
        query = sa.select(*columns, *_AMOUNTS).where(*selection.conditions()).group_by(*grouped)
        async with self._connect("read usage") as connection:
            rows: list[tuple[Any, ...]] = [tuple(row) for row in await connection.execute(query)]
        begin = 2 + len(names)
        return tuple(
            Sum(
                quarter=row[0],
                currency=row[1],
                names=row[2:begin],
                amounts=Amounts(**dict(zip(_AMOUNT_NAMES, row[begin:], strict=True))),
            )
            for row in rows
        )

    async def records(self, selection: Selection) -> AsyncGenerator[UsageRecord]:
        """The selected records, oldest first, a few at a time. Whoever iterates closes it.

        Each few are read in a transaction of their own: who reads slowly holds none, in which the
        file could not be tidied. What is written meanwhile is seen, if it belongs behind what was.

        Raises:
            UsageError: the database failed.
        """
        order = (usage.c.time_us, usage.c.request_id)
        query = sa.select(usage).where(*selection.conditions()).order_by(*order)
        query = query.limit(ROWS_AT_A_TIME)
        page = query
        while True:
            async with self._connect("read usage records") as connection:
                rows = (await connection.execute(page)).mappings().all()
            for row in rows:
                yield record_of(row)
            if len(rows) < ROWS_AT_A_TIME:
                return
            last = rows[-1]
            page = query.where(sa.tuple_(*order) > sa.tuple_(last["time_us"], last["request_id"]))

    async def delete_before(self, time_s: float, *, limit: int) -> int:
        """Delete the oldest records that ended before `time_s`, `limit` at most; how many it were.

        Raises:
            UsageError: the database failed.
        """
        old = (
            sa.select(usage.c.request_id)
            .where(usage.c.time_us < microseconds(time_s))
            .order_by(usage.c.time_us)
            .limit(limit)
        )
        statement = sa.delete(usage).where(usage.c.request_id.in_(old))
        async with self._connect("delete old usage records") as connection:
            return (await connection.execute(statement)).rowcount

    @asynccontextmanager
    async def _connect(self, purpose: str) -> AsyncGenerator[AsyncConnection]:
        """One transaction, committed at the end of the block."""
        try:
            async with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise UsageError(f"cannot {purpose}: {error}") from error


def _insert_new(dialect: str) -> sa.Insert:
    """What leaves rows alone that are there already; each database has its own words for it."""
    key = [usage.c.request_id]
    if dialect == "postgresql":
        return postgresql.insert(usage).on_conflict_do_nothing(index_elements=key)
    return sqlite.insert(usage).on_conflict_do_nothing(index_elements=key)


_AMOUNT_NAMES = tuple(column.name for column in _AMOUNTS)
