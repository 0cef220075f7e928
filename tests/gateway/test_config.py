"""Settings from the environment, and back into it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.config import (
    NOT_FOR_ENGINES,
    ClaimPath,
    ConfigError,
    OidcSettings,
    Settings,
    StoreAddress,
    data_dir,
    load_settings,
)
from gateway.networks import parse_network


def test_without_variables_everything_is_at_its_default() -> None:
    assert load_settings({}) == Settings()
    assert load_settings({"TURNOUT_PORT": ""}) == Settings()


def test_every_setting_survives_the_way_through_an_environment() -> None:
    settings = Settings(
        home=Path("/srv/turnout"),
        database="postgresql://turnout@db/turnout",
        database_password_file=Path("/run/secrets/db"),
        pepper_file=Path("/run/secrets/pepper"),
        trusted_proxies=(parse_network("10.0.0.0/8"), parse_network("::1")),
        auth_failures_per_min=0,
        admin_auth_failures_per_min=1,
        admin_requests_per_min=2,
        policy=Path("p.yaml"),
        host="::1",
        port=0,
        workers=3,
        run_dir=Path("/run/t"),
        body_limit_bytes=1,
        body_timeout_s=1.5,
        keep_alive_s=2.0,
        drain_timeout_s=3.0,
        usage_retention=timedelta(days=90),
        log_level="debug",
        log_json=True,
        store=StoreAddress("redis://:secret@host:6379/0"),
        store_password_file=Path("/run/secrets/store"),
        oidc=OidcSettings(
            issuer="https://idp.example/realms/acme",
            audience="turnout",
            tenant_claim=ClaimPath("org.tenant"),
            plan_claim=ClaimPath("https://acme.example/plan"),
            jwks_url="https://idp.example/keys?p=1",
        ),
    )
    assert load_settings(settings.to_environment()) == settings
    assert load_settings(Settings().to_environment()) == Settings()


def test_an_engine_is_told_all_but_what_may_hold_a_password() -> None:
    """Case Q-KEY-IN-LOGS: emptied, not left out, for a process inherits what is not set anew."""
    settings = Settings(
        database="postgresql://turnout:CANARY@db/turnout",
        store=StoreAddress("redis://:CANARY@host:6379/0"),
        log_level="debug",
    )
    told = settings.to_engine_environment()
    assert {told[name] for name in NOT_FOR_ENGINES} == {""}
    assert told.keys() == settings.to_environment().keys() | set(NOT_FOR_ENGINES)
    assert not any("CANARY" in value for value in told.values())
    assert load_settings(told) == Settings(log_level="debug")


def test_a_password_in_a_url_is_not_shown_with_the_settings() -> None:
    """Case Q-KEY-IN-LOGS."""
    settings = Settings(database="postgresql://turnout:CANARY@db/turnout")
    assert "CANARY" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNOUT_PORT", "http"),
        ("TURNOUT_PORT", "-1"),
        ("TURNOUT_WORKERS", "0"),
        ("TURNOUT_WORKERS", "auto"),
        ("TURNOUT_DRAIN_TIMEOUT_S", "0"),
        ("TURNOUT_DRAIN_TIMEOUT_S", "inf"),
        ("TURNOUT_LOG_JSON", "perhaps"),
        ("TURNOUT_TRUSTED_PROXIES", "localhost"),
        ("TURNOUT_TRUSTED_PROXIES", "10.0.0.1/8"),
        ("TURNOUT_TRUSTED_PROXIES", "10.0.0.1,"),
        ("TURNOUT_USAGE_RETENTION", "90"),
        ("TURNOUT_USAGE_RETENTION", "0d"),
        ("TURNOUT_USAGE_RETENTION", "3M"),
        ("TURNOUT_STORE", "postgres"),
        ("TURNOUT_OIDC_TENANT_CLAIM", "org..tenant"),
        ("TURNOUT_OIDC_TENANT_CLAIM", ".tenant"),
        ("TURNOUT_OIDC_PLAN_CLAIM", "plan."),
        ("TURNOUT_OIDC_ISSUER", "https://idp.example/?realm=acme"),
    ],
)
def test_a_value_that_cannot_be_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_settings({name: value})


def test_the_home_directory_can_be_asked_for_alone() -> None:
    assert data_dir({"TURNOUT_HOME": "/srv"}) == Path("/srv")


def test_a_stores_address_shows_no_password() -> None:
    """Case Q-KEY-IN-LOGS: neither when settings are printed nor when the address is wrong."""
    address = StoreAddress("redis://:CANARY@host:6379/0")
    assert "CANARY" not in f"{address} {address!r} {Settings(store=address)}"
    with pytest.raises(ConfigError, match="TURNOUT_STORE: must be") as refused:
        load_settings({"TURNOUT_STORE": "http://:CANARY@host"})
    assert "CANARY" not in str(refused.value)


OIDC = {"TURNOUT_OIDC_ISSUER": "https://idp.example", "TURNOUT_OIDC_AUDIENCE": "turnout"}


def test_tokens_need_no_more_than_an_issuer_and_an_audience() -> None:
    oidc = load_settings(OIDC).oidc
    assert oidc == OidcSettings(issuer="https://idp.example", audience="turnout")
    assert oidc.tenant_claim.names == ("tenant",)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("ISSUER", "TURNOUT_OIDC_AUDIENCE: needed with TURNOUT_OIDC_ISSUER; set it to"),
        ("AUDIENCE", "TURNOUT_OIDC_ISSUER: needed with TURNOUT_OIDC_AUDIENCE; set it to"),
        ("TENANT_CLAIM", "TURNOUT_OIDC_ISSUER: needed with TURNOUT_OIDC_TENANT_CLAIM"),
        ("PLAN_CLAIM", "TURNOUT_OIDC_ISSUER"),
        ("JWKS_URL", "TURNOUT_OIDC_ISSUER"),
    ],
)
def test_tokens_that_are_set_up_by_half_are_refused(given: str, missing: str) -> None:
    """Never taken to mean that none are wanted."""
    with pytest.raises(ConfigError, match=missing):
        load_settings({f"TURNOUT_OIDC_{given}": "https://idp.example"})


@pytest.mark.parametrize("name", ["TURNOUT_OIDC_ISSUER", "TURNOUT_OIDC_JWKS_URL"])
@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example",
        "http://localhost:8080",
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1",
        "http://[::2]",
        "ftp://127.0.0.1",
        "idp.example",
        "//idp.example",
        "https://",
        "https://idp.example/a b",
        "https://idp.example/\n",
        "https://[idp.example",
        "https://jane:CANARY@idp.example",
        "http://127.0.0.1@idp.example",
        "https://idp.example/#a",
    ],
)
def test_a_provider_is_asked_where_nobody_reads_along(name: str, url: str) -> None:
    with pytest.raises(ConfigError, match=name) as refused:
        load_settings({**OIDC, name: url})
    assert "CANARY" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/realms/a", "http://127.8.9.1", "http://[::1]:80", "HTTPS://a.b"]
)
def test_a_provider_on_this_machine_needs_no_certificate(url: str) -> None:
    settings = load_settings({**OIDC, "TURNOUT_OIDC_ISSUER": url})
    assert settings.oidc is not None
    assert settings.oidc.issuer == url


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("tenant", ("tenant",)),
        ("a.b.c", ("a", "b", "c")),
        ("https://acme.example/tenant", ("https://acme.example/tenant",)),
        ("urn:acme.example:tenant", ("urn:acme.example:tenant",)),
    ],
)
def test_a_claim_is_a_path_or_a_uri(text: str, names: tuple[str, ...]) -> None:
    assert ClaimPath(text).names == names
    assert str(ClaimPath(text)) == text
