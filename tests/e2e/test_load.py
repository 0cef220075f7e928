"""Many streams at once, clients that leave, and an engine that dies."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx

from tests.e2e.policies import NATIVE
from tests.e2e.running import Server, serving
from tests.e2e.streaming import Answer, stream_chat

NUM_STREAMS = 32
POLL_S = 0.05
PATIENCE_S = 60.0


def body_of(number: int) -> dict[str, object]:
    """Requests of mixed lengths, greedy, so that each has one right answer."""
    return {
        "model": "smollm2",
        "messages": [
            {"role": "user", "content": f"Count from {number} upwards. " + "Go on. " * number}
        ],
        "temperature": 0,
        "max_tokens": 12 + number % 5 * 4,
        "ignore_eos": True,
    }


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.base_url,
        headers=server.headers,
        timeout=120.0,
        trust_env=False,
        limits=httpx.Limits(max_connections=200),
    )


async def gauge(client: httpx.AsyncClient, name: str) -> float:
    """The sum of a metric over its labels."""
    text = (await client.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(name)]
    assert lines, name
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def until_idle(client: httpx.AsyncClient) -> None:
    """Wait until the engine says that no block is in use and nobody runs or waits."""
    async with asyncio.timeout(PATIENCE_S):
        while any(
            [
                await gauge(client, name)
                for name in (
                    "vllm:kv_cache_usage_perc",
                    "vllm:num_requests_running",
                    "vllm:num_requests_waiting",
                    "turnout_inflight_requests",
                )
            ]
        ):
            await asyncio.sleep(POLL_S)


async def test_half_of_32_streams_hang_up_and_the_other_half_is_none_the_wiser(
    server: Server,
) -> None:
    """E-BATCH-INVARIANCE, S-CANCEL-CASCADE, stream-client-disconnect, O-STALE-ABORT."""
    async with client_of(server) as client:
        together: list[Answer] = await asyncio.gather(
            *(
                stream_chat(client, body_of(number), hang_up_after=3 if number % 2 else None)
                for number in range(NUM_STREAMS)
            )
        )
        await until_idle(client)
        for number in range(0, NUM_STREAMS, 2):
            assert together[number].is_done
            assert together[number] == await stream_chat(client, body_of(number))


async def test_a_client_that_leaves_a_whole_answer_frees_the_engine(server: Server) -> None:
    """nonstream-client-disconnect: without a stream, too."""
    async with client_of(server) as client:
        body = body_of(1) | {"max_tokens": 4000}
        for _ in range(8):
            try:
                await client.post("/v1/chat/completions", json=body, timeout=0.3)
            except httpx.ReadTimeout:
                continue
            raise AssertionError("4,000 tokens came in 0.3 s")
        await until_idle(client)


async def test_300_requests_at_once_all_get_an_answer(server: Server) -> None:
    """G-LOAD-DROP: a result or a clear refusal, never a reset."""
    async with client_of(server) as client:

        async def one(number: int) -> int:
            answer = await client.post(
                "/generate",
                json={"inputs": f"Number {number} is", "parameters": {"max_new_tokens": 2}},
            )
            if answer.status_code == 429:
                assert answer.json()["error_type"] == "overloaded"
            return answer.status_code

        statuses = await asyncio.gather(*(one(number) for number in range(300)))
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 100
        await until_idle(client)


async def test_a_killed_engine_fails_its_requests_once_and_comes_back() -> None:
    """P-HEALTH-LOADING, E-ENGINE-STEP-ERROR: and the gateway stays up all the while."""
    with serving(NATIVE) as server:
        async with client_of(server) as client:
            body = body_of(2) | {"max_tokens": 4000}
            running = [asyncio.create_task(stream_chat(client, body)) for _ in range(4)]
            async with asyncio.timeout(PATIENCE_S):
                while await gauge(client, "vllm:num_requests_running") < 4:
                    await asyncio.sleep(POLL_S)
                while await gauge(client, "vllm:generation_tokens_total") < 8:
                    await asyncio.sleep(POLL_S)
            (engine,) = server.pids("backends.host")
            os.kill(engine, signal.SIGKILL)
            for answer in await asyncio.gather(*running):
                assert answer.error
                assert answer.text
            assert (await client.get("/livez")).status_code == 200
            again = await stream_chat(client, body_of(3))
            assert again.is_done
            assert server.pids("backends.host") not in ([], [engine])
