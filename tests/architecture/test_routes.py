"""Deny by default: every route needs a key but those on an explicit list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.routing import Route

from backends.echo import EchoBackend
from gateway.routes import OPEN_PATHS, build_routes
from tests.gateway.serving import Gateway, gateway_over

ROUTES = [
    (method, route.path.replace("{model:path}", "echo"))
    for route in build_routes()
    if isinstance(route, Route)
    for method in sorted((route.methods or set()) - {"HEAD"})
]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    backends = {name: EchoBackend(name) for name in ("first", "second")}
    async with gateway_over(tmp_path, backends) as running:
        yield running


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("credentials", ["", "Bearer wrong", "Basic eA=="])
async def test_a_route_answers_401_without_a_key_unless_it_is_listed(
    gateway: Gateway, method: str, path: str, credentials: str
) -> None:
    """Q-AUTH-COVERAGE: a new route that nobody listed fails here."""
    caller = gateway.caller(path, {"inputs": "x"}, method=method)
    caller.headers = {"content-type": "application/json", "authorization": credentials}
    await caller.run()
    if method == "GET" and path in OPEN_PATHS:
        assert caller.status == 200
    else:
        assert caller.status == 401
        assert caller.response_headers["www-authenticate"] == "Bearer"


VARIANTS = [
    "//v1//chat/completions",
    "/V1/chat/completions",
    "/v1/../v1/chat/completions",
    "/v1%2fchat",
]


@pytest.mark.parametrize("path", VARIANTS)
async def test_a_path_in_disguise_reaches_nothing_without_a_key(
    gateway: Gateway, path: str
) -> None:
    """Q-AUTH-COVERAGE."""
    caller = gateway.caller(path, {})
    caller.headers = {"content-type": "application/json"}
    await caller.run()
    assert caller.status in (401, 404)


async def test_an_unknown_path_is_a_json_404(gateway: Gateway) -> None:
    """tgi-unknown-route-json, http-unknown-url."""
    answer = await gateway.call("/v1/nope", {})
    assert answer.status == 404
    assert "Invalid URL" in answer.json()["error"]["message"]


async def test_a_wrong_method_says_which_are_right(gateway: Gateway) -> None:
    answer = await gateway.call("/generate", b"", method="GET")
    assert answer.status == 405
    assert "POST" in answer.response_headers["allow"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
