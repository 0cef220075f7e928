"""OpenAI's own client with tokens of an identity provider, against a real server of each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.e2e.policies import ECHO
from tests.e2e.running import Server, serving, turnout, usage_records
from tests.identity_provider import (
    AUDIENCE,
    SUBJECT,
    IdentityProvider,
    identity_provider,
)

pytestmark = pytest.mark.e2e

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as running:
        yield running


@pytest.fixture(scope="module")
def server(provider: IdentityProvider) -> Iterator[Server]:
    environment = {
        "TURNOUT_OIDC_ISSUER": provider.issuer,
        "TURNOUT_OIDC_AUDIENCE": AUDIENCE,
        "TURNOUT_OIDC_TENANT_CLAIM": "https://acme.example/tenant",
    }
    with serving(ECHO, **environment) as running:
        turnout(running.home, "tenants", "create", "acme", "--plan", "demo")
        yield running


def token_by(provider: IdentityProvider, *, tenant: str = "acme", lives_s: float = 300) -> str:
    claims = {"https://acme.example/tenant": tenant}
    return provider.token(odd_claims=claims, exp=int(time.time() + lives_s))


def answer(server: Server, token: str) -> str:
    with (
        httpx2.Client(trust_env=False) as transport,
        OpenAI(
            base_url=f"{server.base_url}/v1", api_key=token, max_retries=0, http_client=transport
        ) as client,
    ):
        chat = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "one two"}]
        )
    return chat.choices[0].message.content or ""


def test_a_token_chats_and_its_use_is_the_tenants(
    server: Server, provider: IdentityProvider
) -> None:
    assert answer(server, token_by(provider)) == "one two"
    records = [one for one in usage_records(server.home, 1) if one["tenant"] == "acme"]
    assert {one["key_id"][:5] for one in records} == {"oidc:"}
    assert SUBJECT not in json.dumps(records)


def test_an_expired_token_is_an_authentication_error(
    server: Server, provider: IdentityProvider
) -> None:
    token = token_by(provider, lives_s=-1)
    with pytest.raises(openai.AuthenticationError, match="The token has expired") as caught:
        answer(server, token)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.type == "invalid_request_error"
    assert not any(part in str(caught.value) for part in token.split("."))


def test_a_disabled_tenant_is_refused_soon(server: Server, provider: IdentityProvider) -> None:
    turnout(server.home, "tenants", "create", "brief", "--plan", "demo")
    token = token_by(provider, tenant="brief")
    assert answer(server, token) == "one two"
    turnout(server.home, "tenants", "disable", "brief")
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_refused(server, token):
        assert time.monotonic() < deadline_s


def is_refused(server: Server, token: str) -> bool:
    try:
        answer(server, token)
    except openai.AuthenticationError as refused:
        return "Tenant 'brief' is disabled" in refused.message
    return False


def test_a_server_that_is_set_up_by_half_does_not_start() -> None:
    with (
        pytest.raises(AssertionError, match="TURNOUT_OIDC_AUDIENCE: needed with"),
        serving(ECHO, TURNOUT_OIDC_ISSUER="https://idp.example"),
    ):
        pytest.fail("it started")
