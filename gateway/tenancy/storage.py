"""Where tenants and keys are kept: a SQLite file, or a PostgreSQL server. Opens either, made ready.

Passwords are in no message: a database is named by host, port and name. Knows no queries beyond
the lock that a migration needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gateway.stores.create_once import create_once
from gateway.tenancy import pepper
from gateway.tenancy.migrate import migrate
from gateway.tenancy.schema import DirectoryError

SQLITE = "sqlite"

BUSY_TIMEOUT_S = 5.0
"""For a lock on the file, a connection to the server, an answer. A write takes milliseconds."""

MIGRATION_TIMEOUT_S = 60.0
"""How long to wait for another process that migrates. A million keys took a file 0.4 s."""

_LOCK_ID = 0x7475726E6F7574  # "turnout": any number that nobody else takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A database and its pepper."""

    url: sa.URL
    pepper: Path

    @property
    def is_file(self) -> bool:
        return self.url.get_backend_name() == SQLITE

    def __str__(self) -> str:
        if self.is_file:
            return str(self.url.database)
        host = self.url.host or self.url.query.get("host", "localhost")
        port = self.url.port or 5432
        return f"PostgreSQL database {self.url.database or ''!r} on {host} port {port}"


def storage_of(
    home: Path, database: str, password_file: Path | None, pepper_file: Path | None
) -> Storage:
    """From settings to a place. `database`: `sqlite`, for `turnout.db` in `home`, or a URL.

    Raises:
        DirectoryError: the URL cannot be used, or the password cannot be read.
    """
    if database == SQLITE:
        url = sa.URL.create("sqlite+aiosqlite", database=str(home / "turnout.db"))
    else:
        url = _postgres_url(database, password_file)
    return Storage(url=url, pepper=pepper_file or home / "pepper")


def open_engine(storage: Storage) -> AsyncEngine:
    """Connections to a database that was prepared.

    Raises:
        DirectoryError: the driver is not installed.
    """
    if storage.is_file:
        return _engine(storage.url, {"timeout": BUSY_TIMEOUT_S}, pool_timeout=BUSY_TIMEOUT_S)
    return _engine(
        storage.url,
        {"timeout": BUSY_TIMEOUT_S, "command_timeout": BUSY_TIMEOUT_S},
        pool_timeout=BUSY_TIMEOUT_S,
        pool_pre_ping=True,  # a server that was restarted costs no request
    )


def _engine(url: sa.URL, arguments: dict[str, float], **options: Any) -> AsyncEngine:
    try:
        return create_async_engine(url, connect_args=arguments, hide_parameters=True, **options)
    except ModuleNotFoundError:
        raise DirectoryError(
            "PostgreSQL needs asyncpg, which is not installed; pip install 'turnout[postgres]'"
        ) from None


def prepare(storage: Storage, entropy: Callable[[int], bytes]) -> bytes:
    """Make sure that database and pepper exist and fit, and return the pepper. Blocks.

    Call it in a thread without an event loop.

    Raises:
        DirectoryError: the message says what is wrong with which, and what to do.
    """

    def work(connection: sa.Connection) -> bytes:
        migrate(connection)
        return pepper.settle(connection, storage.pepper, entropy)

    try:
        if storage.is_file:
            return _in_file(Path(str(storage.url.database)), work)
        return asyncio.run(_on_server(storage, work))
    except DirectoryError as error:
        raise DirectoryError(f"cannot open {storage}: {error}") from None
    except (OSError, SQLAlchemyError) as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise DirectoryError(f"cannot open {storage}: {reason}") from error


def _in_file(path: Path, work: Callable[[sa.Connection], bytes]) -> bytes:
    create_once(path, _use_wal)
    with _sqlite(path).connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # others wait here
        result = work(connection)
        connection.commit()
    return result


def _sqlite(path: Path) -> sa.Engine:
    # `isolation_level`: the driver begins nothing by itself, so tables change in the transaction
    return sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        connect_args={"timeout": MIGRATION_TIMEOUT_S, "isolation_level": None},
    )


def _use_wal(draft: Path) -> None:
    with _sqlite(draft).connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


async def _on_server(storage: Storage, work: Callable[[sa.Connection], bytes]) -> bytes:
    timeouts = {"timeout": BUSY_TIMEOUT_S, "command_timeout": MIGRATION_TIMEOUT_S}
    engine = _engine(storage.url, timeouts, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID)))
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def _postgres_url(text: str, password_file: Path | None) -> sa.URL:
    """A libpq URL for asyncpg. `sslmode` is its `ssl`; certificates come from `PGSSLROOTCERT`."""
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):  # neither may show the text: it can hold a password
        raise DirectoryError(_HOW_TO_NAME) from None
    if url.drivername not in ("postgresql", "postgres"):
        raise DirectoryError(_HOW_TO_NAME)
    query = dict(url.query)
    if unknown := query.keys() - {"host", "sslmode"}:
        raise DirectoryError(
            f"TURNOUT_DATABASE has a parameter {min(unknown)!r}, which is not read; "
            "those that are: host (a socket's directory), sslmode"
        )
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    if password_file is not None:
        url = url.set(password=_read_password(password_file))
    return url.set(drivername="postgresql+asyncpg", query=query)


_HOW_TO_NAME = (
    "TURNOUT_DATABASE is neither 'sqlite' nor a URL such as "
    "postgresql://turnout@db.example:5432/turnout"
)


def _read_password(path: Path) -> str:
    try:
        return path.read_text().removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DirectoryError(
            f"TURNOUT_DATABASE_PASSWORD_FILE: cannot read {path}: {error}"
        ) from None
