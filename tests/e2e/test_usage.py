"""The books of a real server: complete when it is told to stop, and true when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import httpx

from gateway.stores.sqlite import SqliteStore
from tests.e2e.running import Server, serving, turnout, usage_records
from tests.e2e.streaming import stream_chat

POLICY = """\
version: 1
currency: EUR
backends:
  echo: {engine: echo, price: {input: 0.5, output: 2}}
  slow: {engine: echo, token_delay_s: 0.5}
models:
  echo: {}
  slow: {}
limits:
  large: {requests: 1M/h, tokens: 1M/h}
plans:
  demo: {limits: [large], models: "*"}
routes:
  - {name: slow, match: {model: slow}, use: slow}
  - {name: all, use: echo}
defaults: {model: echo, estimate_output: 100}
"""


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.base_url, headers=server.headers, timeout=60.0, trust_env=False
    )


def body_of(model: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "word" + " word" * 99}]}


async def until(client: httpx.AsyncClient, line: str) -> None:
    """Wait for a line of the metrics."""
    async with asyncio.timeout(30):
        while line not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.02)


async def used_tokens(server: Server) -> int:
    """What the limits' counters hold."""
    store = await SqliteStore.open(server.home / "limits.db", clock=time.monotonic)
    try:
        return sum(one.used for one in await store.usage() if "/tokens/" in one.counter)
    finally:
        await store.aclose()


async def test_a_server_that_is_told_to_stop_leaves_every_record() -> None:
    """Of whole answers, and of one that it had to cut."""
    with serving(POLICY, TURNOUT_DRAIN_TIMEOUT_S="0.5") as server:
        async with client_of(server) as client:
            endless = asyncio.create_task(stream_chat(client, body_of("slow")))
            await until(client, "turnout_inflight_requests 1.0")
            answers = (stream_chat(client, body_of("echo")) for _ in range(20))
            assert all(answer.is_done for answer in await asyncio.gather(*answers))
            os.kill(server.process.pid, signal.SIGTERM)
            assert (await endless).error
        assert await asyncio.to_thread(server.process.wait, 30) == 0
        rows = turnout(server.home, "usage", "records").splitlines()
        records = [json.loads(row) for row in rows]
        assert sorted(record["outcome"] for record in records) == ["complete"] * 20 + ["drained"]
        whole = json.loads(turnout(server.home, "usage", "--by", "model", "--format", "json"))
        by_model = {line["model"]: line for line in whole["lines"]}
        assert by_model["echo"]["cost_micros"] == 20 * (100 * 0.5 + 101 * 2)
        assert by_model["slow"]["unpriced_requests"] == 1
        tokens = sum(line["prompt_tokens"] + line["completion_tokens"] for line in whole["lines"])
        assert tokens == await used_tokens(server)


async def test_after_a_kill_records_and_counters_agree_on_what_was_written() -> None:
    """Running requests are in neither: their leases expire."""
    with serving(POLICY) as server:
        async with client_of(server) as client:
            answers = (stream_chat(client, body_of("echo")) for _ in range(20))
            assert all(answer.is_done for answer in await asyncio.gather(*answers))
            await until(client, "turnout_inflight_requests 0.0")
            await until(client, "turnout_usage_unwritten_records 0.0")
            running = asyncio.create_task(stream_chat(client, body_of("slow")))
            await until(client, "turnout_inflight_requests 1.0")
            (gateway,) = server.pids("gateway.server")
            os.kill(gateway, signal.SIGKILL)
            await asyncio.wait([running])
            assert running.exception() is not None
        records = await asyncio.to_thread(usage_records, server.home, 20)
        assert [record["outcome"] for record in records] == ["complete"] * 20
        tokens = sum(one["prompt_tokens"] + one["completion_tokens"] for one in records)
        assert tokens == 20 * 201 == await used_tokens(server)
