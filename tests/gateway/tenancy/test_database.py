"""Tenants and keys on a real database."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import database
from gateway.tenancy.database import CACHE_TTL_S, Directory
from gateway.tenancy.keys import ENTROPY_BYTES, mint
from gateway.tenancy.schema import DirectoryError

ROOT = Path(__file__).parents[3]
NOW_S = 1_800_000_000.0
STRANGER = mint(bytes(range(ENTROPY_BYTES)))

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


async def refuses(directory: Directory, secret: str, *, now_s: float, match: str) -> None:
    with pytest.raises(Unauthenticated, match=match) as caught:
        await directory.authenticate(secret, now_s=now_s)
    assert not caught.value.missing
    assert secret[-12:] not in caught.value.message


async def test_a_key_opens_the_door_for_its_tenant(directory: Directory, secret: str) -> None:
    principal = await directory.authenticate(secret, now_s=NOW_S)
    (record,) = await directory.keys("acme")
    assert principal.tenant == await directory.tenant("acme")
    assert principal.tenant.plan == "free"
    assert principal.key_id == record.key_id


async def test_unknown_and_malformed_keys_are_refused(directory: Directory, secret: str) -> None:
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect API key")
    await refuses(directory, secret[:-1] + "!", now_s=NOW_S, match="not a whole key")


async def test_an_expired_key_is_refused_even_while_it_is_cached(
    directory: Directory, secret: str
) -> None:
    await directory.authenticate(secret, now_s=NOW_S + 3599.9)
    await refuses(directory, secret, now_s=NOW_S + 3600.0, match="expired")


async def test_a_revocation_is_seen_at_once_here_and_within_a_second_elsewhere(
    directory: Directory, secret: str, home: Path
) -> None:
    other = await Directory.open(home)
    await other.authenticate(secret, now_s=NOW_S)
    await directory.authenticate(secret, now_s=NOW_S)
    (record,) = await directory.keys()
    await directory.revoke_key(record.key_id, now_s=NOW_S)
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect API key")
    await other.authenticate(secret, now_s=NOW_S + CACHE_TTL_S / 2)
    await refuses(other, secret, now_s=NOW_S + CACHE_TTL_S, match="Incorrect API key")
    await other.aclose()


async def test_a_clock_stepping_back_does_not_prolong_the_cache(
    directory: Directory, secret: str, home: Path
) -> None:
    """Case Q-CLOCK-STEP."""
    await directory.authenticate(secret, now_s=NOW_S)
    sql(home, "UPDATE keys SET revoked_s = 1.0")
    await refuses(directory, secret, now_s=NOW_S - 3600.0, match="Incorrect API key")


async def test_a_key_in_use_is_looked_up_once_a_second_only(
    directory: Directory, secret: str, home: Path
) -> None:
    await directory.authenticate(secret, now_s=NOW_S)
    sql(home, "ALTER TABLE keys RENAME TO elsewhere")
    await directory.authenticate(secret, now_s=NOW_S + 0.9)
    with pytest.raises(Overloaded, match="Keys cannot be checked"):
        await directory.authenticate(secret, now_s=NOW_S + 1.0)


async def test_the_cache_is_bounded(
    directory: Directory, secret: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(database, "CACHE_ENTRIES", 2)
    others = [(await directory.create_key("acme", name="", now_s=NOW_S))[0] for _ in range(2)]
    for each in (secret, *others):
        await directory.authenticate(each, now_s=NOW_S)
    sql(home, "UPDATE keys SET revoked_s = 1.0")
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect API key")  # the oldest went
    await directory.authenticate(others[0], now_s=NOW_S)


async def test_no_part_of_a_key_is_logged(
    directory: Directory, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case Q-KEY-IN-LOGS: unknown, expired and revoked are told apart by id or digest."""
    caplog.set_level(logging.DEBUG)
    (record,) = await directory.keys()
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect")
    await refuses(directory, secret, now_s=NOW_S + 3600.0, match="expired")
    await directory.revoke_key(record.key_id, now_s=NOW_S)
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect")
    refusals = [one.getMessage() for one in caplog.records if one.name == database.__name__]
    assert "refused a key: unknown" in refusals[0]
    assert refusals[1] == f"refused key {record.key_id}: expired"
    assert f"refused key {record.key_id}: revoked" in refusals[2]
    for each in (STRANGER, secret):
        assert not any(each[i : i + 8] in caplog.text for i in range(8, len(each) - 7))


async def test_no_secret_is_stored(directory: Directory, secret: str, home: Path) -> None:
    await directory.aclose()
    stored = b"".join(path.read_bytes() for path in files(home))
    assert secret.encode() not in stored
    assert secret[8:-4].encode() not in stored


async def test_records_survive_a_restart_with_the_same_pepper(
    directory: Directory, secret: str, home: Path
) -> None:
    again = await Directory.open(home)
    assert await again.keys() == await directory.keys()
    assert (await again.authenticate(secret, now_s=NOW_S)).tenant.name == "acme"
    await again.aclose()


async def test_a_second_tenant_of_the_same_name_is_refused(
    directory: Directory, secret: str
) -> None:
    with pytest.raises(DirectoryError, match="there is a tenant 'acme' already"):
        await directory.create_tenant("acme", plan="pro")


@pytest.mark.parametrize("name", ["", "Acme", "a b", "-a", "a" * 64, "é", "a\n", "*"])
async def test_names_that_policies_could_not_match_are_refused(
    directory: Directory, name: str
) -> None:
    with pytest.raises(DirectoryError, match="cannot be a tenant's name"):
        await directory.create_tenant(name, plan="free")


async def test_unknown_tenants_and_keys_are_named_with_a_remedy(directory: Directory) -> None:
    with pytest.raises(DirectoryError, match="turnout tenants create nobody"):
        await directory.create_key("nobody", name="", now_s=NOW_S)
    with pytest.raises(DirectoryError, match="there is no tenant 'nobody'"):
        await directory.keys("nobody")
    with pytest.raises(DirectoryError, match="turnout keys list"):
        await directory.revoke_key("key_0", now_s=NOW_S)


async def test_revoking_again_keeps_the_first_time(directory: Directory, secret: str) -> None:
    (record,) = await directory.keys()
    await directory.revoke_key(record.key_id, now_s=NOW_S)
    assert (await directory.revoke_key(record.key_id, now_s=NOW_S + 9.0)).revoked_s == NOW_S


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


async def test_a_newer_schema_is_refused_with_a_remedy(directory: Directory, home: Path) -> None:
    sql(home, "UPDATE schema_version SET version = 9")
    with pytest.raises(DirectoryError, match="schema version 9, this Turnout knows 1; upgrade"):
        await Directory.open(home)


async def test_a_lost_pepper_is_not_replaced_by_one_that_opens_nothing(
    directory: Directory, secret: str, home: Path
) -> None:
    (home / "pepper").unlink()
    for _ in range(2):
        with pytest.raises(DirectoryError, match="pepper is gone"):
            await Directory.open(home)


async def test_a_file_that_is_no_directory_is_refused_by_name(
    directory: Directory, home: Path
) -> None:
    sql(home, "DROP TABLE schema_version")
    with pytest.raises(DirectoryError, match=r"cannot open .*turnout\.db: .*no such table"):
        await Directory.open(home)
