"""Tokens of an identity provider where keys would be: what requests are answered with."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ClaimPath, OidcSettings
from gateway.guard import Guard
from gateway.tenancy.keys import ENTROPY_BYTES, mint
from gateway.tenancy.oidc.key_ring import MIN_INTERVAL_S
from tests.gateway.serving import CHAT, Caller, Gateway, chat, echo, gateway_over
from tests.gateway.test_authorisation import GUARDED, SCOPE_OF
from tests.identity_provider import (
    AUDIENCE,
    SUBJECT,
    IdentityProvider,
    identity_provider,
    key_of,
)

POLICY = """\
version: 1
backends:
  echo: {engine: echo}
models: {echo: {}, other: {}}
limits:
  single: {per: key, requests: 1/day}
plans:
  demo: {limits: [], models: "*"}
  single: {limits: [single], models: [echo]}
routes:
  - {name: all, use: echo}
defaults:
  model: echo
"""
STRANGER = mint(bytes(range(ENTROPY_BYTES)))


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as running:
        yield running


@pytest.fixture
def settings(provider: IdentityProvider) -> OidcSettings:
    return OidcSettings(
        issuer=provider.issuer, audience=AUDIENCE, plan_claim=ClaimPath("entitlements.plan")
    )


@pytest.fixture
async def gateway(tmp_path: Path, settings: OidcSettings) -> AsyncIterator[Gateway]:
    guard = Guard(
        auth_failures_per_min=3,
        admin_auth_failures_per_min=0,
        admin_requests_per_min=0,
        clock=time.monotonic,
    )
    backends = {"echo": echo("echo")}
    async with gateway_over(tmp_path, backends, policy=POLICY, oidc=settings, guard=guard) as one:
        yield one


def token_by(provider: IdentityProvider, *, plan: str | None = "demo", **changes: Any) -> str:
    return provider.token(entitlements={"plan": plan}, **changes)


async def ask(
    gateway: Gateway, token: str, path: str = CHAT, body: object = None, *, method: str = "POST"
) -> Caller:
    headers = {"authorization": f"Bearer {token}"}
    return await gateway.call(path, body or chat(), method=method, headers=headers)


async def refusal(gateway: Gateway, token: str, path: str = CHAT) -> tuple[int, str, str]:
    """The status, OpenAI's type and code; the message holds nothing of the token."""
    answer = await ask(gateway, token, path)
    assert not any(part and part in answer.text for part in token.split("."))
    error = answer.json()["error"]
    return answer.status, error["type"], error["code"]


async def test_a_token_opens_what_a_key_does(gateway: Gateway, provider: IdentityProvider) -> None:
    answer = await ask(gateway, token_by(provider))
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    assert (await gateway.call(CHAT, chat())).status == 200  # with a key, as ever


@pytest.mark.parametrize(("method", "route"), GUARDED)
async def test_a_token_is_for_inference_alone(
    gateway: Gateway, provider: IdentityProvider, method: str, route: str
) -> None:
    path = route.replace("{model:path}", "echo")
    body = {"inputs": "x"} if "chat" not in route else chat()
    if route == "/v1/completions":
        body = {"prompt": "x"}
    answer = await ask(gateway, token_by(provider), path, body, method=method)
    if SCOPE_OF[route] == "inference":
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert f"This token lacks the scope '{SCOPE_OF[route]}', it has inference" in answer.text


async def test_every_refusal_is_one_of_a_key(gateway: Gateway, provider: IdentityProvider) -> None:
    bad_key = (401, "invalid_request_error", "invalid_api_key")
    assert await refusal(gateway, token_by(provider, exp=1)) == bad_key
    assert await refusal(gateway, "eyJ.e30.CANARY") == bad_key
    tgi = await ask(gateway, token_by(provider, aud="other"), "/generate", {"inputs": "x"})
    assert (tgi.status, tgi.json()["error_type"]) == (401, "authentication")
    assert tgi.response_headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("plan", ["gold", None])
async def test_an_unknown_plan_is_no_permission(
    gateway: Gateway, provider: IdentityProvider, plan: str | None
) -> None:
    """However often: the token itself is good."""
    for _ in range(5):
        assert await refusal(gateway, token_by(provider, plan=plan)) == (
            403,
            "invalid_request_error",
            "insufficient_permissions",
        )


async def test_the_plan_of_the_token_says_which_models(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    other = chat(model="other")
    assert (await ask(gateway, token_by(provider), body=other)).status == 200
    answer = await ask(gateway, token_by(provider, plan="single"), body=other)
    assert (answer.status, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_limits_of_keys_hold_for_each_subject(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    """However many tokens it gets."""
    for subject in ("jane", "joe"):
        statuses = [
            (await ask(gateway, token_by(provider, plan="single", sub=subject, jti=str(i)))).status
            for i in range(2)
        ]
        assert statuses == [200, 429]


async def test_a_usage_record_names_nobody(gateway: Gateway, provider: IdentityProvider) -> None:
    for jti in ("a", "b"):
        await ask(gateway, token_by(provider, plan="single", jti=jti))
    records = await gateway.records()
    assert {(record.tenant, record.plan) for record in records} == {("acme", "single")}
    (key_id,) = {record.key_id for record in records}
    assert key_id.startswith("oidc:")
    assert SUBJECT not in repr(records)


async def test_a_disabled_tenants_tokens_open_nothing(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    token = token_by(provider)
    assert (await ask(gateway, token)).status == 200
    await gateway.services.directory.disable_tenant("acme", now_s=time.time())
    assert (await refusal(gateway, token))[0] == 401


async def test_an_address_full_of_failures_is_still_served_good_tokens(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    """Fresh ones too; bad ones meet the limit, as bad keys do."""
    bad = [(await ask(gateway, token_by(provider, exp=i))).status for i in range(1, 6)]
    assert bad == [401, 401, 401, 429, 429]
    assert (await ask(gateway, STRANGER)).status == 429
    good = [(await ask(gateway, token_by(provider, jti=str(i)))).status for i in range(5)]
    assert good == [200] * 5


async def test_while_no_key_is_known_requests_are_to_come_back(
    tmp_path: Path, provider: IdentityProvider, settings: OidcSettings
) -> None:
    """And keys of our own go on."""
    provider.fail_with = 500
    async with gateway_over(tmp_path, {"echo": echo("echo")}, policy=POLICY, oidc=settings) as one:
        answer = await ask(one, token_by(provider))
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "server_is_overloaded"
        assert 1 <= int(answer.response_headers["retry-after"]) <= MIN_INTERVAL_S
        assert (await one.call(CHAT, chat())).status == 200


async def test_a_token_of_a_key_that_is_not_published_is_refused(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    token = token_by(provider, key=key_of("ES256", "stranger"))
    assert await refusal(gateway, token) == (401, "invalid_request_error", "invalid_api_key")


async def test_a_token_opens_no_admin_route(gateway: Gateway, provider: IdentityProvider) -> None:
    answer = await ask(gateway, token_by(provider), "/admin/v1/tenants", b"", method="GET")
    assert answer.status == 401


async def test_without_a_provider_a_token_is_no_key(
    gateway: Gateway, provider: IdentityProvider
) -> None:
    """As it was before there were any."""
    without = replace(gateway, services=replace(gateway.services, token_check=None))
    answer = await ask(without, token_by(provider))
    assert answer.status == 401
    assert "which no key is" in answer.text
