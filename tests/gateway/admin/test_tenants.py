"""Tenants over the admin API, on a real directory."""

from __future__ import annotations

import pytest

from tests.gateway.admin.operator import Operator
from tests.gateway.serving import CHAT, chat


async def test_a_tenant_goes_through_its_life(operator: Operator) -> None:
    created = await operator.ask("POST", "/tenants", {"name": "globex", "plan": "demo"})
    assert created.status == 201
    tenant = created.json()
    assert (tenant["name"], tenant["plan"], tenant["disabled_s"]) == ("globex", "demo", None)
    assert (await operator.ask("GET", "/tenants/globex")).json() == tenant
    changed = await operator.ask("PATCH", "/tenants/globex", {"plan": "demo"})
    assert changed.json() == tenant
    await operator.refused("DELETE", "/tenants/globex", status=409, code="tenant_in_use")
    disabled = (await operator.ask("POST", "/tenants/globex:disable")).json()
    assert disabled["disabled_s"] is not None
    assert (await operator.ask("POST", "/tenants/globex:enable")).json() == tenant
    await operator.ask("POST", "/tenants/globex:disable")
    assert (await operator.ask("DELETE", "/tenants/globex")).status == 200
    await operator.refused("GET", "/tenants/globex", status=404, code="tenant_not_found")


async def test_what_changes_here_is_seen_at_once(operator: Operator) -> None:
    gateway = operator.gateway
    assert (await gateway.call(CHAT, chat())).status == 200
    await operator.ask("POST", "/tenants/acme:disable")
    assert (await gateway.call(CHAT, chat())).status == 401
    await operator.ask("POST", "/tenants/acme:enable")
    assert (await gateway.call(CHAT, chat())).status == 200


async def test_tenants_are_listed_page_by_page(operator: Operator) -> None:
    for name in ("c", "b"):
        await operator.ask("POST", "/tenants", {"name": name, "plan": "demo"})
    first = (await operator.ask("GET", "/tenants?limit=2")).json()
    assert [one["name"] for one in first["data"]] == ["acme", "b"]
    rest = (await operator.ask("GET", f"/tenants?limit=2&after={first['next']}")).json()
    assert [one["name"] for one in rest["data"]] == ["c"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"name": "x", "plan": "pro"}, "unknown_plan", "no plan 'pro'; it has demo."),
        ({"name": "x", "plan": "demo", "colour": 1}, "unknown_parameter", "field 'colour'"),
        ({"name": "x", "plan": "demo", "colour": None}, "unknown_parameter", "here: name, plan"),
        ({"name": "x"}, "missing_required_parameter", "plan is required"),
        ({"name": 5, "plan": "demo"}, "invalid_type", "name must be a string, got 5"),
        ({"name": "A B", "plan": "demo"}, "invalid_value", "cannot be a tenant's name"),
        (b"{", None, "could not parse the JSON"),
        (b"", "missing_required_parameter", "name is required"),
    ],
)
async def test_a_body_that_does_not_fit_creates_nothing(
    operator: Operator, body: object, code: str | None, message: str
) -> None:
    assert message in await operator.refused("POST", "/tenants", body, status=400, code=code)
    assert len(await operator.gateway.services.directory.tenants()) == 1


async def test_conflicts_and_unknown_names_are_told_apart(operator: Operator) -> None:
    acme = {"name": "acme", "plan": "demo"}
    message = await operator.refused("POST", "/tenants", acme, status=409, code="tenant_exists")
    assert message == "There is a tenant 'acme' already."
    assert (await operator.ask("POST", "/tenants", acme)).response_headers[
        "x-should-retry"
    ] == "false"  # OpenAI's clients repeat a 409
    for method, path, body in (
        ("PATCH", "/tenants/nobody", {"plan": "demo"}),
        ("POST", "/tenants/nobody:disable", b""),
        ("POST", "/tenants/nobody:enable", b""),
        ("DELETE", "/tenants/nobody", b""),
        ("GET", "/tenants/nobody/keys", b""),
        ("POST", "/tenants/nobody/keys", {}),
    ):
        message = await operator.refused(method, path, body, status=404, code="tenant_not_found")
        assert message == "There is no tenant 'nobody'."
    plan = {"plan": "pro"}
    await operator.refused("PATCH", "/tenants/acme", plan, status=400, code="unknown_plan")


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("limit=0", "invalid_value", "from 1 to 1000"),
        ("limit=1001", "invalid_value", "from 1 to 1000"),
        ("limit=many", "invalid_value", "from 1 to 1000"),
        ("limit=1&limit=2", "invalid_value", "limit is given twice"),
        ("page=2", "unknown_parameter", "Unknown parameter 'page'; known here: limit, after."),
    ],
)
async def test_a_query_is_read_strictly(
    operator: Operator, query: str, code: str, message: str
) -> None:
    assert message in await operator.refused("GET", f"/tenants?{query}", status=400, code=code)


async def test_what_takes_no_body_gets_none(operator: Operator) -> None:
    message = await operator.refused(
        "POST", "/tenants/acme:disable", {"for": "1h"}, status=400, code="invalid_value"
    )
    assert "takes no body" in message
    tenant = await operator.gateway.services.directory.tenant("acme")
    assert tenant.disabled_s is None
