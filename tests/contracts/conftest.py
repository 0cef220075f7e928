"""The server of PostgreSQL that the contracts share: started for the first test that wants it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server
