"""Keys with rules on a real server: who called is known by its socket, or by proxies it trusts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.contracts.postgres import PASSWORD, postgres_server
from tests.e2e.policies import ECHO
from tests.e2e.running import Server, serving, turnout

BODY = {"model": "echo", "prompt": "one two"}
FROM_AFAR = {"x-forwarded-for": "203.0.113.7"}


def new_key(server: Server, tenant: str, *options: str) -> dict[str, str]:
    turnout(server.home, "tenants", "create", tenant, "--plan", "demo")
    key: dict[str, str] = json.loads(
        turnout(server.home, "keys", "create", tenant, *options, "--json")
    )
    return key


def status(server: Server, key: str, **headers: str) -> int:
    with server.client(key=key) as client:
        return client.post("/v1/completions", json=BODY, headers=headers).status_code


def test_a_process_of_this_host_is_no_trusted_proxy_by_itself(echo_server: Server) -> None:
    """Case Q-XFF-SPOOF: no library in between believes the header of a local caller."""
    afar = new_key(echo_server, "afar", "--ip", "203.0.113.0/24")["key"]
    local = new_key(echo_server, "local", "--ip", "127.0.0.1")["key"]
    assert status(echo_server, afar, **FROM_AFAR) == 401
    assert status(echo_server, local, **FROM_AFAR) == 200


async def test_a_gateway_behind_a_proxy_with_its_keys_in_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases Q-XFF-SPOOF and Q-KEY-IN-LOGS: the database's password is in no line of the log."""
    (tmp_path / "password").write_text(PASSWORD)
    monkeypatch.setenv("TURNOUT_DATABASE_PASSWORD_FILE", str(tmp_path / "password"))
    monkeypatch.setenv("TURNOUT_TRUSTED_PROXIES", "127.0.0.1")
    with postgres_server() as postgres:
        monkeypatch.setenv("TURNOUT_DATABASE", postgres.new_database())
        with serving(ECHO, TURNOUT_LOG_LEVEL="debug") as server:
            assert not (server.home / "turnout.db").exists()
            key = new_key(server, "acme", "--ip", "203.0.113.0/24", "--models", "echo")
            assert status(server, key["key"], **FROM_AFAR) == 200
            assert status(server, key["key"]) == 401
            turnout(server.home, "keys", "revoke", key["key_id"])
            async with asyncio.timeout(30):
                while status(server, key["key"], **FROM_AFAR) != 401:
                    await asyncio.sleep(0.05)
            log = server.log_path.read_text()
    assert key["key_id"] in log  # it was refused from elsewhere
    assert PASSWORD not in log
    assert key["key"] not in log
