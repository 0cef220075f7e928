"""A whole server that counts in Redis."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores.redis import RedisStore
from tests.e2e.policies import ECHO
from tests.e2e.running import Server, serving
from tests.valkey import ValkeyServer

pytestmark = pytest.mark.e2e

POLICY = ECHO.replace("demo: {limits: []", "demo: {limits: [tight]")


def status_of(server: Server) -> int:
    with server.client() as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
        return client.post("/v1/chat/completions", json=body).status_code


def test_what_one_server_has_granted_and_counted_lies_in_redis(valkey: ValkeyServer) -> None:
    with serving(POLICY, TURNOUT_STORE=valkey.url) as server:
        assert [status_of(server) for _ in range(4)] == [200, 200, 200, 429]
        assert not server.home.joinpath("limits.db").exists()

    async def usage() -> dict[str, tuple[int, int]]:
        store = RedisStore.open(valkey.url)
        try:
            return {
                one.counter.split("/")[2]: (one.used, one.reserved) for one in await store.usage()
            }
        finally:
            await store.aclose()

    counted = asyncio.run(usage())
    assert counted["requests"] == (3, 0)
    assert counted["tokens"][1] == 0
    assert counted["tokens"][0] > 0
