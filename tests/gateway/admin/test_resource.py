"""The way in and out of the admin API: guard, audit lines, origins of web pages, what it shows."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from gateway.guard import Guard
from gateway.networks import parse_network
from gateway.tenancy.keys import mint
from gateway.tenancy.tenants import AdminScope
from tests.clock import FakeClock
from tests.gateway.admin.operator import Operator, operator_of
from tests.gateway.serving import CHAT, Gateway, chat, echo, gateway_over

STRANGER = mint(bytes(range(32)))


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "turnout.audit"]


async def test_every_change_leaves_one_audit_line_and_no_secret(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await operator.ask("POST", "/tenants", {"name": "globex", "plan": "demo"})
    await operator.ask("POST", "/tenants", {"name": "globex", "plan": "demo"})
    await operator.ask("PATCH", "/tenants/globex", {"plan": "none"})
    key = (await operator.ask("POST", "/tenants/globex/keys")).json()
    rotated = (await operator.ask("POST", f"/keys/{key['key_id']}:rotate")).json()
    await operator.ask("DELETE", f"/keys/{key['key_id']}")
    await operator.ask("GET", "/tenants/globex")
    who = f"by admin key {operator.key_id} (ops) from 127.0.0.1"
    assert audit_lines(caplog) == [
        f"create tenant 'globex plan=demo' {who}: 201",
        f"create tenant 'globex plan=demo' {who}: 409",
        f"change tenant 'globex plan=none' {who}: 400",
        f"create key 'globex key={key['key_id']}' {who}: 201",
        f"rotate key '{key['key_id']} successor={rotated['key_id']}' {who}: 201",
        f"revoke key '{key['key_id']}' {who}: 200",
    ]
    for secret in (operator.key, key["key"], rotated["key"]):
        assert secret[-12:] not in caplog.text


async def test_a_change_that_a_key_may_not_make_is_in_the_audit_too(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """On one line, whatever the path holds."""
    caplog.set_level(logging.INFO)
    secret, _ = await gateway.services.directory.admin_keys.create(
        "reader", scope=AdminScope.READ, now_s=time.time()
    )
    headers = {"authorization": f"Bearer {secret}"}
    answer = await gateway.call(
        "/admin/v1/tenants/a\nb:disable", b"", method="POST", headers=headers
    )
    assert answer.status == 403
    assert answer.json()["error"]["code"] == "insufficient_permissions"
    (line,) = audit_lines(caplog)
    assert line.startswith(r"disable tenant 'a\nb' by admin key admin_")
    assert line.endswith(" (reader) from 127.0.0.1: 403")


async def test_whoami_says_which_key_it_is(operator: Operator) -> None:
    assert (await operator.ask("GET", "/whoami")).json() == {
        "key_id": operator.key_id,
        "name": "ops",
        "scope": "write",
        "expires_s": None,
        "address": "127.0.0.1",
    }


async def test_limits_show_what_is_counted(operator: Operator) -> None:
    await operator.gateway.call(CHAT, chat())
    shown = (await operator.ask("GET", "/limits")).json()
    by_dimension = {one["dimension"]: one for one in shown["data"]}
    requests = by_dimension["requests"]
    assert (requests["limit"], requests["window"], requests["tenant"]) == ("free", "60", "acme")
    assert (requests["used"], requests["reserved"]) == (1, 0)
    assert by_dimension["tokens"]["used"] == 7
    assert (await operator.ask("GET", "/limits?tenant=acme")).json() == shown
    first = (await operator.ask("GET", "/limits?limit=1")).json()
    rest = (await operator.ask("GET", f"/limits?limit=1&after={first['next']}")).json()
    assert [*first["data"], *rest["data"]] == shown["data"]
    await operator.refused("GET", "/limits?tenant=nobody", status=404, code="tenant_not_found")


async def test_web_pages_of_others_reach_everything_but_the_admin_api(operator: Operator) -> None:
    origin = {"origin": "https://evil.example", "authorization": f"Bearer {operator.key}"}
    preflight = {**origin, "access-control-request-method": "POST"}
    gateway = operator.gateway
    for path in ("/admin/v1/whoami", "//admin/v1/whoami/", "/admin"):
        for method, headers in (("GET", origin), ("OPTIONS", preflight)):
            answer = await gateway.call(path, b"", method=method, headers=headers)
            assert "access-control-allow-origin" not in answer.response_headers
            assert (answer.status == 200) == (method == "GET" and path != "/admin")
    answer = await gateway.call(CHAT, b"", method="OPTIONS", headers=preflight)
    assert answer.response_headers["access-control-allow-origin"] == "*"
    answer = await gateway.call("/health", b"", method="GET", headers=origin)
    assert answer.response_headers["access-control-allow-origin"] == "*"


async def test_a_wrong_method_says_which_are_right(operator: Operator) -> None:
    answer = await operator.ask("PUT", "/tenants/acme")
    assert answer.status == 405
    allowed = answer.response_headers["allow"].split(", ")
    assert {"GET", "PATCH", "DELETE"} <= set(allowed)


async def test_a_database_that_fails_is_a_503_and_in_the_audit(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="turnout.audit")
    async with operator.gateway.services.directory._engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE tenants RENAME TO elsewhere")
    await operator.refused("POST", "/tenants/acme:disable", status=503, code="server_is_overloaded")
    assert audit_lines(caplog)[-1].endswith(": 503")


async def test_who_shows_too_many_bad_keys_is_refused_and_good_ones_go_on(tmp_path: Path) -> None:
    """Brute force: 401 until the limit, then 429 for all that are not known here."""
    clock = FakeClock()
    guard = Guard(
        auth_failures_per_min=3,
        admin_auth_failures_per_min=2,
        admin_requests_per_min=0,
        clock=clock,
    )
    backends = {"first": echo("first"), "second": echo("second")}
    async with gateway_over(tmp_path, backends, guard=guard) as gateway:
        assert (await gateway.call(CHAT, chat())).status == 200
        new, _ = await gateway.services.directory.create_key("acme", name="", now_s=time.time())

        async def status(key: str) -> int:
            answer = await gateway.call(CHAT, chat(), headers={"authorization": f"Bearer {key}"})
            if answer.status == 429:
                assert answer.json()["error"]["code"] == "rate_limit_exceeded"
                assert answer.response_headers["retry-after"] == "60"
            return answer.status

        assert [await status(STRANGER) for _ in range(4)] == [401, 401, 401, 429]
        assert await status(new) == 429  # nobody has seen it here: not looked up
        assert await status(gateway.key) == 200
        clock.advance(60.0)
        assert await status(new) == 200


async def test_admin_requests_and_failures_are_limited_by_the_address_that_proxies_tell(
    tmp_path: Path,
) -> None:
    guard = Guard(
        auth_failures_per_min=0,
        admin_auth_failures_per_min=2,
        admin_requests_per_min=5,
        clock=FakeClock(),
    )
    backends = {"first": echo("first"), "second": echo("second")}
    async with gateway_over(
        tmp_path, backends, guard=guard, trusted_proxies=(parse_network("127.0.0.1"),)
    ) as gateway:
        operator = await operator_of(gateway)

        async def status(key: str, address: str) -> int:
            headers = {"authorization": f"Bearer {key}", "x-forwarded-for": address}
            path = "/admin/v1/whoami"
            return (await gateway.call(path, b"", method="GET", headers=headers)).status

        bad = [await status(STRANGER, "2001:db8::1") for _ in range(2)]
        assert [*bad, await status(STRANGER, "2001:db8::2")] == [401, 401, 429]
        assert await status(operator.key, "2001:db8::2") == 429  # the same /64
        assert [await status(operator.key, "203.0.113.7") for _ in range(6)] == [200] * 5 + [429]
