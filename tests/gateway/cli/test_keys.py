"""`turnout tenants` and `turnout keys` against a real database."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.cli.keys import app as keys_app, duration_s
from gateway.cli.tenants import app as tenants_app
from gateway.errors import Unauthenticated
from gateway.tenancy.database import Directory
from gateway.tenancy.key_rules import parse_rules
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


def authenticate(home: Path, secret: str, *, now_s: float = 0.0) -> Principal:
    async def run() -> Principal:
        directory = await Directory.open(home)
        try:
            return await directory.authenticate(secret, now_s=now_s)
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


def test_a_key_is_created_with_its_rules_and_shown_with_them(home: Path) -> None:
    turnout("tenants", "create", "acme")
    rules = ("--scopes", "models, inference", "--models", "small,team/*", "--ip", "10.0.0.0/8,::1")
    about = ("--name", "ci", "--description", "nightly jobs")
    created = json.loads(
        turnout("keys", "create", "acme", *rules, *about, "--expires", "12h", "--json").stdout
    )
    secret = created.pop("key")
    (record,) = records()
    assert created == record
    principal = authenticate(home, secret)
    assert principal.rules == parse_rules(
        scopes=["inference", "models"], models=["small", "team/*"], networks=["10.0.0.0/8", "::1"]
    )
    assert record["scopes"] == ["inference", "models"]
    assert record["networks"] == ["10.0.0.0/8", "::1/128"]
    assert record["last_used_s"] is None
    shown = turnout("keys", "show", principal.key_id).stdout
    for each in ("nightly jobs", "inference, models", "small, team/*", "10.0.0.0/8, ::1/128"):
        assert each in shown
    assert json.loads(turnout("keys", "show", principal.key_id, "--json").stdout) == {
        **record,
        "last_used_s": 0.0,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scopes", "all"), "is no scope"),
        (("--models", "a b"), "cannot be a model's name"),
        (("--models", ","), "nothing between two commas"),
        (("--ip", "10.0.0.1/8"), "is no network"),
        (("--expires", "soon"), "is not a duration"),
    ],
)
def test_a_rule_that_cannot_be_creates_no_key(
    home: Path, options: tuple[str, ...], message: str
) -> None:
    turnout("tenants", "create", "acme")
    result = turnout("keys", "create", "acme", *options, exit_code=2)
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert records() == []


def test_a_rotated_key_is_shown_as_replaced_and_whether_it_is_still_used(home: Path) -> None:
    turnout("tenants", "create", "acme")
    old_secret = turnout("keys", "create", "acme", "--models", "small").stdout.strip()
    (old,) = records()
    result = turnout("keys", "rotate", str(old["key_id"]), "--overlap", "48h")
    new_secret = result.stdout.removesuffix("\n")
    assert f"{old['key_id']} ({old['hint']}) stays good until" in result.stderr
    replaced, new = records()
    assert authenticate(home, new_secret).key_id == new["key_id"] == replaced["successor_id"]
    assert new["models"] == ["small"]
    assert float(str(replaced["expires_s"])) == float(str(new["created_s"])) + 48 * 3600
    state = f"replaced by {new['key_id']}"
    assert turnout("keys", "list").stdout.splitlines()[1].endswith(state)
    authenticate(home, old_secret, now_s=float(str(new["created_s"])) + 60.0)
    assert turnout("keys", "list").stdout.splitlines()[1].endswith(f"{state}, still used")
    assert f"{state}, still used" in turnout("keys", "show", str(old["key_id"])).stdout


def test_a_rotation_and_a_revocation_are_told_in_json(home: Path) -> None:
    turnout("tenants", "create", "acme")
    turnout("keys", "create", "acme")
    key_id = str(records()[0]["key_id"])
    rotated = json.loads(turnout("keys", "rotate", key_id, "--expires", "30d", "--json").stdout)
    assert authenticate(home, rotated["key"]).key_id == rotated["key_id"]
    assert rotated["expires_s"] == rotated["created_s"] + 30 * 86_400
    revoked = json.loads(turnout("keys", "revoke", key_id, "--json").stdout)
    assert (revoked["key_id"], revoked["successor_id"]) == (key_id, rotated["key_id"])
    assert revoked["revoked_s"] is not None


def test_a_tenant_goes_through_its_life(home: Path) -> None:
    turnout("tenants", "create", "acme", "--plan", "free")
    secret = turnout("keys", "create", "acme").stdout.strip()
    assert "is on plan pro now" in turnout("tenants", "update", "acme", "--plan", "pro").stdout
    assert authenticate(home, secret).tenant.plan == "pro"
    assert "disabled" in turnout("tenants", "disable", "acme").stdout
    with pytest.raises(Unauthenticated, match="disabled"):
        authenticate(home, secret)
    assert "acme on plan pro, disabled 2" in turnout("tenants", "show", "acme").stdout
    turnout("tenants", "enable", "acme")
    assert authenticate(home, secret).tenant.name == "acme"
    assert "disable it first" in turnout("tenants", "delete", "acme", exit_code=1).stderr
    turnout("tenants", "disable", "acme")
    turnout("tenants", "delete", "acme")
    assert "there is no tenant 'acme'" in turnout("tenants", "show", "acme", exit_code=1).stderr
    assert records() == []


def test_every_command_about_tenants_speaks_json(home: Path) -> None:
    def tenant(*arguments: str) -> Any:
        return json.loads(turnout("tenants", *arguments, "--json").stdout)

    created = tenant("create", "acme")
    assert created == tenant("list") == tenant("show", "acme") == tenant("enable", "acme")
    assert created["plan"] == "demo"
    assert tenant("update", "acme", "--plan", "pro") == {**created, "plan": "pro"}
    disabled = tenant("disable", "acme")
    assert disabled["disabled_s"] is not None
    assert tenant("delete", "acme") == disabled


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
        (("keys", "rotate", "key_0"), "there is no key 'key_0'"),
        (("keys", "show", "key_0"), "there is no key 'key_0'"),
        (("keys", "show", "to_live_123456"), "there is no key 'to_live_1234…'"),
        (("tenants", "show", "nobody"), "there is no tenant 'nobody'"),
        (("tenants", "update", "nobody", "--plan", "p"), "there is no tenant 'nobody'"),
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


def test_a_database_that_cannot_be_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case Q-KEY-IN-LOGS: without the URL, which may hold a password."""
    monkeypatch.setenv("TURNOUT_DATABASE", "mysql://u:CANARY@h/d")
    result = turnout("keys", "list", exit_code=1)
    assert "TURNOUT_DATABASE is neither 'sqlite' nor a URL" in result.stderr
    assert "CANARY" not in result.output


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
