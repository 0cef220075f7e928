"""Tenants' keys over the admin API, on a real directory."""

from __future__ import annotations

import time

import pytest

from gateway.tenancy.key_rules import parse_rules
from tests.gateway.admin.operator import Operator
from tests.gateway.serving import CHAT, chat

NARROW = {
    "name": "ci",
    "description": "nightly jobs",
    "expires": "30d",
    "scopes": ["models", "inference"],
    "models": ["echo"],
    "networks": ["127.0.0.0/8"],
}


async def status_with(operator: Operator, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return (await operator.gateway.call(CHAT, chat(), headers=headers)).status


async def test_a_key_is_issued_with_its_rules_and_its_secret_is_told_once(
    operator: Operator,
) -> None:
    answer = await operator.ask("POST", "/tenants/acme/keys", NARROW)
    assert answer.status == 201
    assert answer.response_headers["cache-control"] == "no-store"
    key = answer.json()
    secret = key.pop("key")
    assert await status_with(operator, secret) == 200
    principal = await operator.gateway.services.directory.authenticate(secret, now_s=time.time())
    assert principal.rules == parse_rules(
        scopes=["models", "inference"], models=["echo"], networks=["127.0.0.0/8"]
    )
    assert key["expires_s"] == key["created_s"] + 30 * 86_400
    assert (key["name"], key["description"], key["tenant"]) == ("ci", "nightly jobs", "acme")
    shown = await operator.ask("GET", f"/keys/{key['key_id']}")
    listed = await operator.ask("GET", "/tenants/acme/keys")
    assert shown.json() == {**key, "last_used_s": shown.json()["last_used_s"]}
    assert key["key_id"] in [one["key_id"] for one in listed.json()["data"]]
    assert secret not in shown.text + listed.text


async def test_a_key_without_a_body_may_do_what_its_plan_allows(operator: Operator) -> None:
    key = (await operator.ask("POST", "/tenants/acme/keys")).json()
    assert key["scopes"] == ["inference", "models", "tokenize"]
    assert (key["models"], key["networks"], key["expires_s"]) == (["*"], None, None)


async def test_a_revoked_key_opens_nothing_from_then_on(operator: Operator) -> None:
    key = (await operator.ask("POST", "/tenants/acme/keys")).json()
    assert await status_with(operator, key["key"]) == 200
    revoked = (await operator.ask("DELETE", f"/keys/{key['key_id']}")).json()
    assert revoked["revoked_s"] is not None
    assert await status_with(operator, key["key"]) == 401
    again = (await operator.ask("DELETE", f"/keys/{key['key_id']}")).json()
    assert again["revoked_s"] == revoked["revoked_s"]


async def test_a_rotated_key_stays_good_for_the_overlap(operator: Operator) -> None:
    old = (await operator.ask("POST", "/tenants/acme/keys", NARROW)).json()
    answer = await operator.ask("POST", f"/keys/{old['key_id']}:rotate", {"overlap": "2h"})
    assert answer.status == 201
    new = answer.json()
    assert [await status_with(operator, one["key"]) for one in (old, new)] == [200, 200]
    assert new["replaces"]["expires_s"] == new["created_s"] + 2 * 3600
    assert new["replaces"]["successor_id"] == new["key_id"]
    assert new["models"] == old["models"]
    message = await operator.refused(
        "POST", f"/keys/{old['key_id']}:rotate", status=409, code="key_ended"
    )
    assert f"replaced by '{new['key_id']}' already" in message


async def test_keys_are_listed_page_by_page(operator: Operator) -> None:
    for _ in range(2):
        await operator.ask("POST", "/tenants/acme/keys")
    everything = (await operator.ask("GET", "/tenants/acme/keys")).json()["data"]
    first = (await operator.ask("GET", "/tenants/acme/keys?limit=2")).json()
    rest = (await operator.ask("GET", f"/tenants/acme/keys?limit=2&after={first['next']}")).json()
    assert [*first["data"], *rest["data"]] == everything
    assert len(everything) == 3
    assert rest["next"] is None
    await operator.refused(
        "GET", "/tenants/acme/keys?after=key_0", status=400, code="invalid_value"
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scopes", ["all"], "scopes: 'all' is no scope"),
        ("scopes", [], "scopes must have at least 1 item"),
        ("models", ["a b"], "models: 'a b' cannot be a model's name"),
        ("models", [], "models must have at least 1 item"),
        ("networks", ["10.0.0.1/8"], "networks: '10.0.0.1/8' is no network"),
        ("networks", [], "networks must have at least 1 item"),
        ("expires", "soon", "expires: 'soon' is not a duration"),
        ("name", "x" * 201, "name must have at most 200 characters"),
        ("scope", "models", "Unknown field 'scope'"),
    ],
)
async def test_a_rule_that_cannot_be_issues_no_key(
    operator: Operator, field: str, value: object, message: str
) -> None:
    """An empty list is not taken for "anything"."""
    answer = await operator.ask("POST", "/tenants/acme/keys", {field: value})
    assert answer.status == 400
    assert answer.json()["error"]["param"] == field
    assert message in answer.json()["error"]["message"]
    assert len(await operator.gateway.services.directory.keys("acme")) == 1


async def test_unknown_keys_are_not_found(operator: Operator) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", ":rotate")):
        message = await operator.refused(
            method, f"/keys/key_0{path}", status=404, code="key_not_found"
        )
        assert message == "There is no key 'key_0'."
