"""`turnout tenants` and `turnout keys` against a real database."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.keys import app as keys_app, duration_s
from gateway.cli.tenants import app as tenants_app
from gateway.tenancy.database import Directory
from gateway.tenancy.tenants import Principal

ROOT = Path(__file__).parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("TURNOUT_HOME", str(home))
    return home


def turnout(group: str, *arguments: str, exit_code: int = 0) -> Result:
    app = {"keys": keys_app, "tenants": tenants_app}[group]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == exit_code, result.output
    return result


def records(*arguments: str) -> list[dict[str, object]]:
    lines = turnout("keys", "list", "--json", *arguments).stdout.splitlines()
    return [json.loads(line) for line in lines]


def authenticate(home: Path, secret: str) -> Principal:
    async def run() -> Principal:
        directory = await Directory.open(home)
        try:
            return await directory.authenticate(secret, now_s=0.0)
        finally:
            await directory.aclose()

    return asyncio.run(run())


def test_a_created_key_is_printed_alone_and_works(home: Path) -> None:
    turnout("tenants", "create", "acme", "--plan", "pro")
    result = turnout("keys", "create", "acme", "--name", "ci", "--expires", "30d")
    principal = authenticate(home, result.stdout.removesuffix("\n"))
    assert (principal.tenant.name, principal.tenant.plan) == ("acme", "pro")
    assert principal.key_id in result.stderr
    (record,) = records()
    assert record["name"] == "ci"
    assert record["tenant"] == "acme"
    assert record["expires_s"] == pytest.approx(float(str(record["created_s"])) + 30 * 86_400)


def test_listing_shows_hints_and_states_but_no_secret(home: Path) -> None:
    """Case Q-KEY-IN-LOGS."""
    turnout("tenants", "create", "acme")
    secrets = [turnout("keys", "create", "acme").stdout.strip() for _ in range(2)]
    turnout("keys", "create", "acme", "--expires", "12h")
    turnout("keys", "revoke", str(records()[0]["key_id"]))
    listed = turnout("keys", "list").stdout
    header, first, second, third = listed.splitlines()
    assert header.split() == ["ID", "TENANT", "KEY", "CREATED", "USED", "STATE", "NAME"]
    assert "revoked" in first
    assert second.endswith("good")
    assert "good until" in third
    for secret in secrets:
        assert secret[-4:] in listed
        assert secret[12:-4] not in listed


def test_keys_are_listed_for_one_tenant_or_all(home: Path) -> None:
    for name in ("acme", "globex"):
        turnout("tenants", "create", name)
        turnout("keys", "create", name)
    assert {record["tenant"] for record in records()} == {"acme", "globex"}
    assert {record["tenant"] for record in records("globex")} == {"globex"}


def test_tenants_are_listed_with_their_plans(home: Path) -> None:
    turnout("tenants", "create", "globex", "--plan", "pro")
    turnout("tenants", "create", "acme")
    rows = [line.split()[:3] for line in turnout("tenants", "list").stdout.splitlines()]
    assert rows == [["NAME", "PLAN", "STATE"], ["acme", "demo", "good"], ["globex", "pro", "good"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("keys", "create", "nobody"), "there is no tenant 'nobody'; create it with"),
        (("keys", "list", "nobody"), "there is no tenant 'nobody'"),
        (("keys", "revoke", "key_0"), "there is no key 'key_0'; 'turnout keys list'"),
        (("tenants", "create", "A B"), "'A B' cannot be a tenant's name"),
    ],
)
def test_what_cannot_be_done_is_said_on_stderr_and_exits_1(
    home: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = turnout(*arguments, exit_code=1)
    assert message in result.stderr
    assert result.stdout == ""


def test_a_bad_setting_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_PORT", "many")
    assert "TURNOUT_PORT='many'" in turnout("keys", "list", exit_code=1).stderr


@pytest.mark.parametrize(("text", "seconds"), [("90m", 5400), ("12h", 43_200), ("30d", 2_592_000)])
def test_lifetimes_are_read_with_their_unit(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "d", "0d", "-1d", "1.5h", "30 d", "1w", "٣d", "9999999d"]
)
def test_other_lifetimes_are_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write for example 90m, 12h or 30d"):
        duration_s(text)


@pytest.mark.parametrize("group", ["keys", "tenants", "usage"])
def test_help_does_not_wait_for_the_database_library(group: str) -> None:
    program = (
        f"import sys, gateway.cli.{group}; "
        "sys.exit('loaded' if {'sqlalchemy', 'torch'} & sys.modules.keys() else 0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
