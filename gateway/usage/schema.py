"""The table of usage records, and its database on disk. Knows no queries.

The file is `usage.db` in the home directory. The table is made together with the file, so a
database without it is not ours.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.stores.create_once import create_once
from gateway.usage.record import UsageRecord

FILE_NAME = "usage.db"

SCHEMA_VERSION = 1

BUSY_TIMEOUT_S = 5.0
"""How long to wait for another process's batch, which holds the lock for milliseconds."""

MICROSECONDS = 1_000_000

metadata = sa.MetaData()

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer))

# Column names are those of `UsageRecord`, but for the time: whole microseconds, which every
# database divides alike.
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("request_id", sa.String, primary_key=True),
    sa.Column("time_us", sa.BigInteger, nullable=False, index=True),
    sa.Column("tenant_id", sa.String, nullable=False),
    sa.Column("tenant", sa.String, nullable=False),
    sa.Column("key_id", sa.String, nullable=False),
    sa.Column("plan", sa.String, nullable=False),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("backend", sa.String, nullable=False),
    sa.Column("route", sa.String, nullable=False),
    sa.Column("decision_id", sa.String, nullable=False),
    sa.Column("endpoint", sa.String, nullable=False),
    sa.Column("stream", sa.Boolean, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("num_attempts", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("cached_tokens", sa.BigInteger, nullable=False),
    sa.Column("estimated", sa.Boolean, nullable=False),
    sa.Column("currency", sa.String, nullable=False),
    sa.Column("cost_micros", sa.BigInteger),
    sa.Column("total_s", sa.Float, nullable=False),
    sa.Column("first_token_s", sa.Float),
    sa.Column("queue_s", sa.Float, nullable=False),
)


_FIELDS = tuple(field.name for field in fields(UsageRecord))  # `asdict` takes 12 times as long


class UsageError(Exception):
    """Usage cannot be written or read; the message says why, and what to do."""


def microseconds(time_s: float) -> int:
    """A time as the table has it."""
    return round(time_s * MICROSECONDS)


def row_of(record: UsageRecord) -> dict[str, Any]:
    """A record as the table has it."""
    row = {name: getattr(record, name) for name in _FIELDS}
    row["time_us"] = microseconds(row.pop("time_s"))
    return row


def record_of(row: sa.RowMapping) -> UsageRecord:
    """The record that a row was made from."""
    values = dict(row)
    return UsageRecord(time_s=values.pop("time_us") / MICROSECONDS, **values)


def open_engine(home: Path) -> AsyncEngine:
    """Connections to the database in `home`, which is made if need be. Blocks for a moment.

    Commits are synced to the disk, SQLite's default: they outlive a power failure, too.

    Raises:
        UsageError: the database is of a newer version.
        OSError, sqlalchemy.exc.SQLAlchemyError: the file cannot be read or written.
    """
    path = home / FILE_NAME
    create_once(path, _fill)
    with _blocking_engine(path).connect() as connection:
        version = connection.execute(sa.select(schema_version.c.version)).scalar_one()
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version}, this Turnout knows {SCHEMA_VERSION}; "
            "upgrade Turnout, or move the file away to begin anew"
        )
    return create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"timeout": BUSY_TIMEOUT_S},
    )


def _blocking_engine(path: Path) -> sa.Engine:
    return sa.create_engine(sa.URL.create("sqlite", database=str(path)), poolclass=NullPool)


def _fill(draft: Path) -> None:
    with _blocking_engine(draft).begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        metadata.create_all(connection)
        connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))
