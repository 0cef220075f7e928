"""The databases a directory is tested on: a SQLite file and a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.tenancy.database import Directory

KINDS = ("sqlite", "postgres")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An installation: a home, and the database that goes with it."""

    home: Path
    database: str
    password_file: Path | None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Directory]:
        """The directory, as one process has it."""
        directory = await Directory.open(
            self.home, database=self.database, password_file=self.password_file
        )
        try:
            yield directory
        finally:
            await directory.aclose()

    async def sql(self, statement: str) -> None:
        """Run a statement beside Turnout, as somebody at the database would."""
        if self.password_file is None:
            url = sa.URL.create("sqlite+aiosqlite", database=str(self.home / "turnout.db"))
        else:
            password = self.password_file.read_text()
            url = sa.make_url(self.database).set(drivername="postgresql+asyncpg", password=password)
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                await connection.exec_driver_sql(statement)
        finally:
            await engine.dispose()
