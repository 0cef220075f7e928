"""Old files become new ones in place, once, whoever opens them."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from gateway.tenancy.database import Directory
from gateway.tenancy.key_rules import KeyRules
from gateway.tenancy.keys import ENTROPY_BYTES, digest, mint
from gateway.tenancy.migrate import VERSION_TABLE
from gateway.tenancy.schema import DirectoryError, metadata

ROOT = Path(__file__).parents[3]
NOW_S = 1_800_000_000.0
PEPPER = bytes(range(32))
SECRET = mint(bytes(range(ENTROPY_BYTES)))

PROCESS = """
import asyncio, sys
from pathlib import Path
from gateway.tenancy.database import Directory

async def main(home, secret):
    directory = await Directory.open(home)
    sys.stdout.write((await directory.authenticate(secret, now_s=1.0)).key_id)
    await directory.aclose()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""

VERSION_1 = """
PRAGMA journal_mode = WAL;
CREATE TABLE schema_version (version INTEGER);
CREATE TABLE tenants (
    tenant_id VARCHAR NOT NULL, name VARCHAR NOT NULL, plan VARCHAR NOT NULL,
    PRIMARY KEY (tenant_id), UNIQUE (name)
);
CREATE TABLE keys (
    key_id VARCHAR NOT NULL, tenant_id VARCHAR NOT NULL, name VARCHAR NOT NULL,
    hint VARCHAR NOT NULL, digest BLOB NOT NULL, created_s FLOAT NOT NULL, expires_s FLOAT,
    revoked_s FLOAT,
    PRIMARY KEY (key_id), FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id), UNIQUE (digest)
);
INSERT INTO schema_version VALUES (1);
INSERT INTO tenants VALUES ('tenant_1', 'acme', 'free');
"""
"""The file as the first Turnout made it, with a tenant."""


@pytest.fixture
def old_home(tmp_path: Path) -> Path:
    """An installation of schema version 1 with one key: `SECRET`."""
    (tmp_path / "pepper").write_bytes(PEPPER)
    with closing(sqlite3.connect(tmp_path / "turnout.db")) as connection, connection:
        connection.executescript(VERSION_1)
        connection.execute(
            "INSERT INTO keys VALUES ('key_1', 'tenant_1', 'ci', 'h', ?, 1.0, NULL, NULL)",
            [digest(SECRET, PEPPER)],
        )
    return tmp_path


async def test_an_old_file_is_upgraded_and_its_keys_may_do_what_they_could(old_home: Path) -> None:
    for _ in range(2):
        directory = await Directory.open(old_home)
        principal = await directory.authenticate(SECRET, now_s=NOW_S)
        (record,) = await directory.keys()
        await directory.aclose()
        assert (principal.tenant.name, principal.tenant.plan) == ("acme", "free")
        assert principal.rules == record.rules == KeyRules()
        assert (record.name, record.description, record.successor_id) == ("ci", "", None)


async def test_one_of_several_upgrades_and_the_others_wait(old_home: Path) -> None:
    directories = await asyncio.gather(*(Directory.open(old_home) for _ in range(8)))
    for directory in directories:
        assert (await directory.authenticate(SECRET, now_s=NOW_S)).key_id == "key_1"
        await directory.aclose()


async def test_one_of_several_processes_upgrades_and_the_others_wait(old_home: Path) -> None:
    async def run() -> tuple[int | None, bytes]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, str(old_home), SECRET),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        return process.returncode, output

    assert await asyncio.gather(*(run() for _ in range(4))) == [(0, b"key_1")] * 4


async def test_an_upgrade_that_fails_leaves_the_file_as_it_was(old_home: Path) -> None:
    with closing(sqlite3.connect(old_home / "turnout.db")) as connection, connection:
        connection.execute("CREATE TABLE pepper (x INTEGER)")
    with pytest.raises(DirectoryError, match=r"cannot open .*turnout\.db: table pepper already"):
        await Directory.open(old_home)
    with closing(sqlite3.connect(old_home / "turnout.db")) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(tenants)")]
        version = connection.execute("SELECT version FROM schema_version").fetchone()
    assert columns == ["tenant_id", "name", "plan"]
    assert version == (1,)


async def test_an_old_file_of_an_unknown_version_is_refused(old_home: Path) -> None:
    with closing(sqlite3.connect(old_home / "turnout.db")) as connection, connection:
        connection.execute("UPDATE schema_version SET version = 9")
    with pytest.raises(DirectoryError, match="schema version 9, this Turnout knows"):
        await Directory.open(old_home)


@pytest.mark.parametrize("is_old", [True, False])
async def test_the_migrations_give_the_tables_that_queries_are_written_for(
    old_home: Path, tmp_path: Path, is_old: bool
) -> None:
    home = old_home if is_old else tmp_path / "new"
    await (await Directory.open(home)).aclose()
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(home / "turnout.db")), poolclass=sa.NullPool
    )
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert compare_metadata(context, metadata) == []
