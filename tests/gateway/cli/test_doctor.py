"""`turnout doctor` says what is missing, and how to get it."""

from __future__ import annotations

import socket
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli.doctor import Finding, examine
from gateway.cli.main import app
from gateway.config import OidcSettings, Settings, StoreAddress
from tests.identity_provider import identity_provider, key_of
from tests.valkey import ValkeyServer

ROOT = Path(__file__).resolve().parents[3]


def settings_for(home: Path, **changes: object) -> Settings:
    values = {"home": home, "policy": ROOT / "policies/default.yaml", "port": 0, **changes}
    return Settings(**values)  # type: ignore[arg-type]


def remedies(settings: Settings) -> dict[str, str]:
    return {found.what: found.remedy for found in examine(settings) if found.remedy}


def test_a_missing_model_says_how_to_pull_it(tmp_path: Path) -> None:
    missing = remedies(settings_for(tmp_path))
    assert "turnout models pull" in missing["model smollm2-135m-instruct"]
    assert len(missing) == 1


def test_nothing_is_missing_for_a_policy_of_echoes(tmp_path: Path) -> None:
    assert not remedies(settings_for(tmp_path, policy=ROOT / "policies/echo.yaml"))


def test_a_model_of_fastchats_workers_is_not_looked_for_here(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    echo, workers = "{engine: echo}", "{engine: fastchat, model: vicuna-7b-v1.5}"
    text = ROOT.joinpath("policies/echo.yaml").read_text()
    policy.write_text(text.replace(echo, workers))
    assert workers in policy.read_text()
    assert not remedies(settings_for(tmp_path, policy=policy))


def test_a_broken_policy_shows_its_errors(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nbackend: {}\n")
    missing = remedies(settings_for(tmp_path, policy=policy))
    assert "policy.yaml:2:1" in missing["policy"]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        missing = remedies(settings_for(tmp_path, port=port))
    assert "TURNOUT_PORT" in missing[f"port {port} on 127.0.0.1"]


def test_a_store_that_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    """Case Q-KEY-IN-LOGS."""
    address = StoreAddress("redis://:CANARY@127.0.0.1:1/0")
    missing = remedies(settings_for(tmp_path, policy=ROOT / "policies/echo.yaml", store=address))
    assert "redis://127.0.0.1:1/0 failed: ConnectionError" in missing["limit store"]
    assert "CANARY" not in missing["limit store"]


def test_a_store_that_answers_lacks_nothing(tmp_path: Path, valkey: ValkeyServer) -> None:
    address = StoreAddress(valkey.url)
    settings = settings_for(tmp_path, policy=ROOT / "policies/echo.yaml", store=address)
    assert not remedies(settings)
    assert [one.state for one in examine(settings) if one.what == "limit store"] == [
        "unix server answers"
    ]


def test_what_several_gateways_cannot_share_is_named(tmp_path: Path) -> None:
    echo = ROOT / "policies/echo.yaml"
    memory = StoreAddress("memory")
    missing = remedies(settings_for(tmp_path, policy=echo, store=memory, workers=2))
    assert "not shared by 2 gateway processes" in missing["gateway processes"]
    assert not remedies(settings_for(tmp_path, policy=echo, store=memory))
    assert not remedies(settings_for(tmp_path, policy=echo, workers=2))


def test_looking_at_a_new_installation_makes_no_file(tmp_path: Path) -> None:
    assert not remedies(settings_for(tmp_path, policy=ROOT / "policies/echo.yaml"))
    assert list(tmp_path.iterdir()) == []


def test_exits_with_1_when_something_is_missing(tmp_path: Path) -> None:
    environment = {
        "TURNOUT_HOME": str(tmp_path),
        "TURNOUT_POLICY": str(ROOT / "policies/default.yaml"),
        "TURNOUT_PORT": "0",
    }
    result = CliRunner().invoke(app, ["doctor"], env=environment)
    assert result.exit_code == 1
    assert "MISSING model smollm2-135m-instruct" in result.output
    assert "ok      python" in result.output


def provider_findings(home: Path, issuer: str) -> list[Finding]:
    settings = settings_for(
        home,
        policy=ROOT / "policies/echo.yaml",
        oidc=OidcSettings(issuer=issuer, audience="turnout"),
    )
    return [found for found in examine(settings) if found.what == f"identity provider {issuer}"]


def test_an_identity_providers_keys_are_named(tmp_path: Path) -> None:
    with identity_provider() as provider:
        provider.rotate(
            key_of("ES256"), key_of("EdDSA", "next"), key_of("RS256", "", size_bits=1024)
        )
        (found,) = provider_findings(tmp_path, provider.issuer)
    assert not found.remedy
    assert found.state.startswith("signs with first (ES256), next (EdDSA); ignored: '': kid:")


def test_an_identity_provider_that_gives_no_keys_is_missing(tmp_path: Path) -> None:
    with identity_provider() as provider:
        provider.fail_with = 503
        (found,) = provider_findings(tmp_path, provider.issuer)
    assert "/.well-known/openid-configuration answered with HTTP status 503" in found.remedy


def test_without_an_identity_provider_none_is_asked(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, policy=ROOT / "policies/echo.yaml")
    assert not [found for found in examine(settings) if "identity" in found.what]
