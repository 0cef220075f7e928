"""`turnout admin-keys` against a real database."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.tenancy.database import Directory
from gateway.tenancy.tenants import AdminKey, AdminScope


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("TURNOUT_HOME", str(home))
    return home


def turnout(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["admin-keys", *arguments])
    assert result.exit_code == exit_code, result.output
    return result


def authenticate(home: Path, secret: str) -> AdminKey:
    async def run() -> AdminKey:
        directory = await Directory.open(home)
        try:
            return await directory.admin_keys.authenticate(secret, now_s=0.0)
        finally:
            await directory.aclose()

    return asyncio.run(run())


def test_a_created_key_is_printed_alone_and_reads_unless_it_is_to_write(home: Path) -> None:
    result = turnout("create", "ops", "--expires", "30d")
    key = authenticate(home, result.stdout.removesuffix("\n"))
    assert key.key_id in result.stderr
    assert key.scope is AdminScope.READ
    assert key.expires_s == pytest.approx(key.created_s + 30 * 86_400)
    writer = json.loads(turnout("create", "deploy", "--scope", "write", "--json").stdout)
    assert authenticate(home, writer["key"]).scope is AdminScope.WRITE


def test_listing_shows_hints_and_states_but_no_secret(home: Path) -> None:
    """Case Q-KEY-IN-LOGS."""
    secrets = [turnout("create", name).stdout.strip() for name in ("first", "second")]
    turnout("create", "third", "--expires", "12h")
    records = [json.loads(line) for line in turnout("list", "--json").stdout.splitlines()]
    assert "revoked" in turnout("revoke", records[0]["key_id"]).stdout
    revoked = json.loads(turnout("revoke", records[0]["key_id"], "--json").stdout)
    assert revoked["revoked_s"] is not None
    listed = turnout("list").stdout
    header, *lines = listed.splitlines()
    assert header.split() == ["ID", "KEY", "SCOPE", "CREATED", "USED", "STATE", "NAME"]
    assert [line.split()[-1] for line in lines] == ["first", "second", "third"]
    assert ["revoked" in line for line in lines] == [True, False, False]
    assert "good until" in lines[2]
    for secret in secrets:
        assert secret[-4:] in listed
        assert secret[13:-4] not in listed


def test_what_cannot_be_done_is_said(home: Path) -> None:
    assert "'turnout admin-keys list'" in turnout("revoke", "admin_0", exit_code=1).stderr
    assert "cannot be an admin key's name" in turnout("create", "a b", exit_code=1).stderr
    turnout("create", "ops", "--scope", "all", exit_code=2)
