"""The admin API of a real server, by plain HTTP; its keys used by openai's client."""

from __future__ import annotations

import time

import httpx
import openai
import pytest

from tests.e2e.policies import ECHO
from tests.e2e.running import Server, serving, turnout

REVOCATION_S = 1.0
"""How late at most, as documented, a revocation is seen by another process."""


def admin_of(server: Server) -> httpx.Client:
    """A client with an admin key that may write."""
    key = turnout(server.home, "admin-keys", "create", "ops", "--scope", "write").strip()
    return httpx.Client(
        base_url=f"{server.base_url}/admin/v1",
        headers={"authorization": f"Bearer {key}"},
        trust_env=False,
        timeout=30.0,
    )


def openai_of(server: Server, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)


def say(client: openai.OpenAI) -> str | None:
    answer = client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "one two"}]
    )
    return answer.choices[0].message.content


def test_a_tenant_is_served_by_a_key_of_the_admin_api_until_it_is_revoked(
    echo_server: Server,
) -> None:
    with admin_of(echo_server) as admin:
        made = admin.post("/tenants", json={"name": "by-http", "plan": "demo"})
        assert made.status_code == 201, made.text
        key = admin.post("/tenants/by-http/keys", json={"name": "ci", "expires": "1h"}).json()
        with openai_of(echo_server, key["key"]) as client:
            assert say(client)
            assert admin.delete(f"/keys/{key['key_id']}").json()["revoked_s"] is not None
            with pytest.raises(openai.AuthenticationError):
                say(client)
        records = admin.get("/usage", params={"by": "tenant", "tenant": "by-http"})
        assert records.status_code == 200
        log = echo_server.log_path.read_text()
    assert "turnout.audit: create tenant 'by-http plan=demo' by admin key admin_" in log
    assert key["key"] not in log


def test_a_key_that_the_command_revokes_is_refused_within_a_second(echo_server: Server) -> None:
    with admin_of(echo_server) as admin:
        admin.post("/tenants", json={"name": "revoked", "plan": "demo"})
        key = admin.post("/tenants/revoked/keys").json()
    with openai_of(echo_server, key["key"]) as client:
        assert say(client)
        turnout(echo_server.home, "keys", "revoke", key["key_id"])
        revoked_s = time.monotonic()
        is_refused = False
        while not is_refused:
            began_s = time.monotonic()
            try:
                say(client)
            except openai.AuthenticationError:
                is_refused = True
            assert is_refused or began_s - revoked_s < REVOCATION_S


def test_a_key_of_one_kind_does_not_open_what_the_other_does(echo_server: Server) -> None:
    with admin_of(echo_server) as admin:
        assert admin.get("/whoami").json()["name"] == "ops"
        secret = admin.headers["authorization"].removeprefix("Bearer ")
    with (
        openai_of(echo_server, secret) as client,
        pytest.raises(openai.AuthenticationError, match="opens only /admin"),
    ):
        say(client)
    with echo_server.client() as client:
        assert client.get("/admin/v1/whoami").status_code == 401


def test_brute_force_is_told_to_wait_while_a_good_key_goes_on() -> None:
    with (
        serving(ECHO, TURNOUT_AUTH_FAILURES_PER_MIN="5") as server,
        openai_of(server, server.key) as good,
        openai_of(server, "to_live_guessed") as bad,
    ):
        assert say(good)
        for _ in range(5):
            with pytest.raises(openai.AuthenticationError):
                say(bad)
        with pytest.raises(openai.RateLimitError) as caught:
            say(bad)
        assert say(good)
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 60
