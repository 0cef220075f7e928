"""What a key may be used for, from where, and for which model: held on every route of the app."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.routing import Route

from backends.echo import EchoBackend, EchoOptions
from gateway.admin.resource import Resource
from gateway.admin.routes import RESOURCES
from gateway.networks import parse_network
from gateway.routes import GENERATION, OPEN_PATHS, build_routes
from gateway.tenancy.key_rules import KeyScope, parse_rules
from gateway.tenancy.tenants import AdminScope
from tests.gateway.serving import Caller, Gateway, gateway_over

POLICY = """\
version: 1
backends:
  broken: {engine: echo}
  spare: {engine: echo}
  large: {engine: echo}
models:
  small: {aliases: [fast]}
  big: {aliases: [quick]}
  team/a: {}
  teamx/a: {}
plans:
  demo: {limits: [], models: "*"}
routes:
  - {name: big, match: {model: big}, use: large}
  - {name: team, match: {model: [team/a, teamx/a]}, use: spare}
  - {name: rest, use: broken, fallback: [spare]}
defaults:
  model: MODEL
  estimate_output: 100
  timeout: {first_token: 5s, between_tokens: 2s, total: 20s}
"""

SCOPE_OF = {
    **{endpoint.path: KeyScope.INFERENCE for endpoint in GENERATION},
    "/v1/models": KeyScope.MODELS,
    "/v1/models/{model:path}": KeyScope.MODELS,
    "/tokenize": KeyScope.TOKENIZE,
}
"""Every route that needs a key. A new one that is not here fails the test below."""

GUARDED = [
    (method, route.path)
    for route in build_routes()
    if isinstance(route, Route)
    for method in sorted((route.methods or set()) - {"HEAD"})
    if not (method == "GET" and route.path in OPEN_PATHS)
    if not isinstance(route.endpoint, Resource)
]

ADMIN = [(method, one.path) for one in RESOURCES for method in one.actions]
READING = {("GET", path) for _, path in ADMIN}
"""What a key that may only read opens: no other method."""

BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {
        "model": "small",
        "messages": [{"role": "user", "content": "x"}],
    },
    "/v1/completions": {"prompt": "x"},
    "/tokenize": {"prompt": "x"},
}


@pytest.fixture
def large() -> EchoBackend:
    return EchoBackend("large")


@pytest.fixture(params=["small"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path: Path, large: EchoBackend
) -> AsyncIterator[Gateway]:
    backends = {
        "broken": EchoBackend("broken", EchoOptions(fail_before=True)),
        "spare": EchoBackend("spare"),
        "large": large,
    }
    policy = POLICY.replace("MODEL", request.param)
    async with gateway_over(tmp_path, backends, policy=policy) as running:
        yield running


async def key_for(
    gateway: Gateway, *, scopes: str = "", models: str = "", networks: str = ""
) -> str:
    """A key of the gateway's tenant; rules as words."""
    rules = parse_rules(scopes=scopes.split(), models=models.split(), networks=networks.split())
    key, _ = await gateway.services.directory.create_key(
        "acme", name="", now_s=time.time(), rules=rules
    )
    return key


async def ask(
    gateway: Gateway,
    key: str,
    path: str = "/v1/completions",
    body: object = None,
    *,
    method: str = "POST",
    **headers: str,
) -> Caller:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given["authorization"] = f"Bearer {key}"
    content = BODIES.get(path, {"inputs": "x"}) if body is None else body
    return await gateway.call(path, content, method=method, headers=given)


def error_code(answer: Caller) -> str:
    """OpenAI's code, or TGI's word."""
    document = answer.json()
    error = document["error"]
    return str(error["code"] if isinstance(error, dict) else document["error_type"])


@pytest.mark.parametrize(("method", "route"), GUARDED)
@pytest.mark.parametrize("scope", list(KeyScope))
async def test_every_route_asks_for_its_scope(
    gateway: Gateway, method: str, route: str, scope: KeyScope
) -> None:
    """Case Q-AUTH-COVERAGE: a route that nobody gave a scope fails here, by its absence above."""
    key = await key_for(gateway, scopes=scope)
    answer = await ask(gateway, key, route.replace("{model:path}", "small"), method=method)
    if scope is SCOPE_OF[route]:
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert error_code(answer) in ("insufficient_permissions", "forbidden")
        assert f"lacks the scope '{SCOPE_OF[route]}', it has {scope};" in answer.text


@pytest.mark.parametrize(("method", "route"), GUARDED)
async def test_every_route_asks_where_the_key_is_used_from(
    gateway: Gateway, method: str, route: str
) -> None:
    """Cases Q-AUTH-COVERAGE, Q-XFF-SPOOF: forwarded addresses of strangers say nothing."""
    path = route.replace("{model:path}", "small")
    key = await key_for(gateway, networks="203.0.113.0/24")
    spoof = {"x_forwarded_for": "203.0.113.7", "x_real_ip": "203.0.113.7"}
    answer = await ask(gateway, key, path, method=method, **spoof)
    assert answer.status == 401
    assert error_code(answer) in ("ip_not_authorized", "authentication")
    assert answer.response_headers["www-authenticate"] == "Bearer"
    local = await key_for(gateway, networks="127.0.0.0/8")
    assert (await ask(gateway, local, path, method=method, **spoof)).status == 200


@pytest.mark.parametrize("scope", list(AdminScope))
@pytest.mark.parametrize(("method", "route"), GUARDED)
async def test_an_admin_key_opens_no_route_of_tenants(
    gateway: Gateway, method: str, route: str, scope: AdminScope
) -> None:
    key, _ = await gateway.services.directory.admin_keys.create(
        "ops", scope=scope, now_s=time.time()
    )
    answer = await ask(gateway, key, route.replace("{model:path}", "small"), method=method)
    assert answer.status == 401
    assert "An admin key opens only /admin" in answer.text
    assert key[-12:] not in answer.text


@pytest.mark.parametrize(("method", "route"), ADMIN)
async def test_every_admin_route_asks_for_an_admin_key_of_its_scope(
    gateway: Gateway, method: str, route: str
) -> None:
    """Case Q-AUTH-COVERAGE: what changes anything is refused to a key that may only read."""
    tenants = await key_for(gateway)
    admin_keys = gateway.services.directory.admin_keys
    reads, _ = await admin_keys.create("reader", scope=AdminScope.READ, now_s=time.time())
    writes, _ = await admin_keys.create("writer", scope=AdminScope.WRITE, now_s=time.time())
    before = await gateway.services.directory.tenants()
    answers = [await ask(gateway, key, route, b"", method=method) for key in (tenants, reads)]
    assert answers[0].status == 401
    assert "A tenant's key does not open /admin" in answers[0].text
    assert tenants[-12:] not in answers[0].text
    assert (answers[1].status == 403) == ((method, route) not in READING)
    assert await gateway.services.directory.tenants() == before
    assert (await ask(gateway, writes, route, b"", method=method)).status not in (401, 403, 500)


async def test_a_trusted_proxy_says_who_called(gateway: Gateway) -> None:
    """Case Q-XFF-SPOOF: read from the right; garbage is nobody."""
    behind = replace(
        gateway,
        services=replace(gateway.services, trusted_proxies=(parse_network("127.0.0.1"),)),
    )
    key = await key_for(gateway, networks="203.0.113.0/24")
    statuses = {
        forwarded: (await ask(behind, key, x_forwarded_for=forwarded)).status
        for forwarded in (
            "203.0.113.7",
            "6.6.6.6, 203.0.113.7",
            "203.0.113.7, 6.6.6.6",
            "203.0.113.7, garbage",
            "\xff",
        )
    }
    assert list(statuses.values()) == [200, 200, 401, 401, 401]
    assert (await ask(behind, key)).status == 401  # the proxy itself is not in the list


@pytest.mark.parametrize("scope", ["inference", "tokenize"])
@pytest.mark.parametrize(
    "written", ["big", "quick", "Small", "small ", "sm\N{CYRILLIC SMALL LETTER A}ll", "nonsense"]
)
async def test_a_key_reaches_no_model_but_its_own(
    gateway: Gateway, large: EchoBackend, scope: str, written: str
) -> None:
    """Case Q-MODEL-BYPASS: unknown and not allowed are not told apart."""
    key = await key_for(gateway, models="small")
    path = {"inference": "/v1/chat/completions", "tokenize": "/tokenize"}[scope]
    answer = await ask(gateway, key, path, {**BODIES[path], "model": written})
    assert answer.status == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert error["message"] == (
        f"The model '{written}' does not exist or you do not have access to it."
    )
    assert large._prompt_tokens == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions?model=big", {"model": "small", "prompt": "x"}, 200),
        ("/v1/completions", b'{"model": "small", "prompt": "x", "model": "big"}', 400),
        ("/v1/completions", b'{"model": "big", "prompt": "x", "model": "small"}', 400),
        ("/v1/completions", {"model": "fast", "prompt": "x"}, 200),
        ("/v1/completions", {"model": "tgi", "prompt": "x"}, 200),
        ("/generate?model=big", {"inputs": "x"}, 200),
        ("/generate", {"inputs": "x", "model": "big"}, 200),
    ],
)
async def test_the_model_comes_from_one_place(
    gateway: Gateway, large: EchoBackend, path: str, body: object, status: int
) -> None:
    """Case Q-MODEL-BYPASS: not from the query, a header, or the second of two keys in the body."""
    key = await key_for(gateway, models="small")
    answer = await ask(gateway, key, path, body, x_model="big")
    assert answer.status == status
    if status == 200:
        assert answer.response_headers["x-turnout-backend"] == "spare"  # the fallback, too
    assert large._prompt_tokens == 0


@pytest.mark.parametrize("gateway", ["big"], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "x"}),
        ("/generate_stream", {"inputs": "x"}),
        ("/", {"inputs": "x", "stream": True}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": "x", "model": "http://localhost:8000"}),
        ("/tokenize", {"inputs": "x"}),
    ],
)
async def test_a_default_model_is_not_open_to_every_key(
    gateway: Gateway, large: EchoBackend, path: str, body: object
) -> None:
    """Case Q-MODEL-BYPASS: a TGI endpoint whose model is implicit."""
    key = await key_for(gateway, models="small")
    answer = await ask(gateway, key, path, body)
    assert answer.status == 404
    assert error_code(answer) in ("model_not_found", "not_found")
    assert large._prompt_tokens == 0


@pytest.mark.parametrize(
    ("models", "listed"),
    [
        ("small", ["small"]),
        ("team/*", ["team/a"]),
        ("*a", ["team/a", "teamx/a"]),
        ("fast", []),  # an alias is no public name
        ("nobody/*", []),
        ("*", ["small", "big", "team/a", "teamx/a"]),
    ],
)
async def test_the_listing_shows_what_the_key_may_use(
    gateway: Gateway, models: str, listed: list[str]
) -> None:
    """Case Q-MODEL-BYPASS: patterns are anchored, 'team/*' is not 'teamx/a'."""
    key = await key_for(gateway, models=models)
    answer = await ask(gateway, key, "/v1/models", b"", method="GET")
    assert [card["id"] for card in answer.json()["data"]] == listed
    for name in ("small", "big", "team/a", "teamx/a"):
        shown = await ask(gateway, key, f"/v1/models/{name}", b"", method="GET")
        used = await ask(gateway, key, body={"prompt": "x", "model": name})
        assert shown.status == used.status == (200 if name in listed else 404)


async def test_a_key_gives_nothing_that_the_plan_does_not(
    gateway: Gateway, large: EchoBackend
) -> None:
    await gateway.services.directory.set_plan("acme", "nobody's")
    key = await key_for(gateway, models="*")
    assert (await ask(gateway, key, body={"prompt": "x", "model": "big"})).status == 404
    assert (await ask(gateway, key, "/v1/models", b"", method="GET")).json()["data"] == []
    assert large._prompt_tokens == 0


async def test_of_all_refusals_the_first_that_applies_is_told(gateway: Gateway) -> None:
    """Where the key is used from comes before what for, and that before the model."""
    everything = {"scopes": "models", "models": "small", "networks": "192.0.2.0/24"}
    body = {"prompt": "x", "model": "big"}
    codes = []
    for left in (("networks", "scopes", "models"), ("scopes", "models"), ("models",)):
        key = await key_for(gateway, **{rule: everything[rule] for rule in left})
        codes.append(error_code(await ask(gateway, key, body=body)))
    assert codes == ["ip_not_authorized", "insufficient_permissions", "model_not_found"]
