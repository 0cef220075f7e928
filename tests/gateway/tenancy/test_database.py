"""The directory in a SQLite file: what only a file has. The rest is in `tests/contracts`."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import Unauthenticated
from gateway.tenancy import verified
from gateway.tenancy.database import Directory
from gateway.tenancy.schema import DirectoryError

ROOT = Path(__file__).parents[3]
NOW_S = 1_800_000_000.0

PROCESS = """
import asyncio, sys
from pathlib import Path
from gateway.tenancy.database import Directory

async def main(home, name):
    directory = await Directory.open(home)
    await directory.create_tenant(name, plan="free")
    secret, _ = await directory.create_key(name, name="", now_s=1.0)
    await directory.aclose()
    sys.stdout.write(secret)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
async def directory(home: Path) -> AsyncIterator[Directory]:
    directory = await Directory.open(home)
    yield directory
    await directory.aclose()


@pytest.fixture
async def secret(directory: Directory) -> str:
    """The secret of a key of tenant acme, created at `NOW_S`, good for an hour."""
    await directory.create_tenant("acme", plan="free")
    secret, _ = await directory.create_key("acme", name="ci", now_s=NOW_S, expires_s=NOW_S + 3600.0)
    return secret


def sql(home: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(home / "turnout.db")) as connection, connection:
        return connection.execute(statement).fetchall()


def files(home: Path) -> list[Path]:
    return list(home.iterdir())


async def test_the_cache_is_bounded(
    directory: Directory, secret: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(verified, "CACHE_ENTRIES", 2)
    others = [(await directory.create_key("acme", name="", now_s=NOW_S))[0] for _ in range(2)]
    for each in (secret, *others):
        await directory.authenticate(each, now_s=NOW_S)
    await asyncio.to_thread(sql, home, "UPDATE keys SET revoked_s = 1.0")
    with pytest.raises(Unauthenticated, match="Incorrect API key"):  # the oldest went
        await directory.authenticate(secret, now_s=NOW_S)
    await directory.authenticate(others[0], now_s=NOW_S)


async def test_no_secret_is_stored(directory: Directory, secret: str, home: Path) -> None:
    await directory.aclose()
    stored = b"".join(path.read_bytes() for path in files(home))
    assert secret.encode() not in stored
    assert secret[8:-4].encode() not in stored


@pytest.mark.parametrize("name", ["", "Acme", "a b", "-a", "a" * 64, "é", "a\n", "*"])
async def test_names_that_policies_could_not_match_are_refused(
    directory: Directory, name: str
) -> None:
    with pytest.raises(DirectoryError, match="cannot be a tenant's name"):
        await directory.create_tenant(name, plan="free")


async def test_several_processes_may_create_the_directory_at_once(home: Path) -> None:
    async def run(name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROCESS, str(home), name, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return output.decode()

    names = [f"tenant-{i}" for i in range(3)]
    secrets = await asyncio.gather(*map(run, names))
    directory = await Directory.open(home)
    found = [(await directory.authenticate(each, now_s=NOW_S)).tenant.name for each in secrets]
    await directory.aclose()
    assert found == names


async def test_the_files_are_the_owners_alone(
    directory: Directory, secret: str, home: Path
) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(home)} == {0o600}
    assert {"turnout.db", "pepper"} <= {path.name for path in files(home)}
