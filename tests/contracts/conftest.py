"""What contracts share: a server of PostgreSQL, started for the first test that wants it, and the
directories in every kind of database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.tenancy.database import Directory
from tests.contracts.directories import KINDS, Place
from tests.contracts.postgres import PASSWORD, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    home = tmp_path / "home"
    if request.param == "sqlite":
        return Place(home=home, database="sqlite", password_file=None)
    server: PostgresServer = request.getfixturevalue("postgres")
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD)
    return Place(home=home, database=server.new_database(), password_file=password_file)


@pytest.fixture
async def directory(place: Place) -> AsyncIterator[Directory]:
    async with place.opened() as directory:
        yield directory
