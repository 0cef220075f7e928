"""Several gateway processes behind one port: they admit, refuse, count and stop as one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.policies import ECHO, NATIVE
from tests.e2e.running import Server, serving, turnout
from tests.e2e.streaming import Answer, stream_chat

NUM_WORKERS = 3
PATIENCE_S = 60.0
POLL_S = 0.05

LIMITED = ECHO.replace(
    "tight: {requests: 3/min, tokens: 4k/min, concurrent: 1}", "tight: {tokens: 100/min}"
).replace("  model: echo\n", "  model: echo\n  estimate_output: 50\n")


def body_of(model: str, num_words: int, **fields: object) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "word " * num_words}],
        **fields,
    }


def workers_of(server: Server) -> dict[Path, int]:
    """The pid of each gateway process, by the socket that is its own."""
    found: dict[Path, int] = {}
    for pid in server.pids("gateway.server"):
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        found[Path(arguments[arguments.index("--socket") + 1])] = pid
    return dict(sorted(found.items()))


@asynccontextmanager
async def clients_of(
    server: Server, *, key: str | None = None
) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client for each gateway process, which reaches that one alone."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(uds=str(path)),
                    base_url="http://gateway",
                    headers={"authorization": f"Bearer {key or server.key}"},
                    timeout=PATIENCE_S,
                )
            )
            for path in workers_of(server)
        ]


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """The sum over its labels, by the word of one gateway process."""
    lines = (await client.get("/metrics")).text.splitlines()
    values = [line.rpartition(" ")[2] for line in lines if line.startswith(name)]
    assert values, name
    return sum(map(float, values))


async def until(client: httpx.AsyncClient, name: str, holds: Callable[[float], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(await metric(client, name)):
            await asyncio.sleep(POLL_S)


async def until_started_again(server: Server, path: Path, killed: int) -> None:
    """Until the gateway process at a socket is another one, and serves."""
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(transport=transport) as client:
        while True:
            await asyncio.sleep(POLL_S)
            if workers_of(server).get(path, killed) == killed:
                continue
            try:
                if (await client.get("http://gateway/readyz")).status_code == 200:
                    return
            except httpx.TransportError:
                continue


async def test_fifty_requests_at_once_are_held_to_one_limit_by_all_workers() -> None:
    """Case Q-TPM-RACE: each is 7 tokens of 100 a minute, whichever worker it came to."""
    with serving(LIMITED, TURNOUT_WORKERS=str(NUM_WORKERS)) as server:
        key = await asyncio.to_thread(server.new_key, "small", "tight")
        async with clients_of(server, key=key) as clients:
            body = body_of("echo", 3, max_tokens=3)
            answers = await asyncio.gather(
                *(
                    clients[number % NUM_WORKERS].post("/v1/chat/completions", json=body)
                    for number in range(50)
                )
            )
        assert {answer.status_code for answer in answers} == {200, 429}
        used = [a.json()["usage"]["total_tokens"] for a in answers if a.status_code == 200]
        assert used == [7] * 14


async def test_a_revoked_key_opens_nothing_on_any_worker() -> None:
    with serving(ECHO, TURNOUT_WORKERS=str(NUM_WORKERS)) as server:
        key = await asyncio.to_thread(server.new_key, "leaver", "demo")
        key_id = key_id_of(await asyncio.to_thread(turnout, server.home, "keys", "list"))
        async with clients_of(server, key=key) as clients:

            async def statuses() -> set[int]:
                answers = (c.post("/v1/chat/completions", json=body_of("echo", 1)) for c in clients)
                return {answer.status_code for answer in await asyncio.gather(*answers)}

            assert await statuses() == {200}  # and each of them believes the key for a while
            await asyncio.to_thread(turnout, server.home, "keys", "revoke", key_id)
            async with asyncio.timeout(5):
                while await statuses() != {401}:
                    await asyncio.sleep(POLL_S)
            assert await statuses() == {401}


def key_id_of(listing: str) -> str:
    """Of the tenant `leaver`, from what `turnout keys list` prints."""
    (line,) = [line for line in listing.splitlines() if "leaver" in line]
    return line.split()[0]


async def test_a_killed_worker_takes_only_its_own_requests_with_it() -> None:
    """Case O-MULTIPROC: counters never go back, and nothing of it stays in flight."""
    with serving(ECHO, TURNOUT_WORKERS=str(NUM_WORKERS)) as server:
        (path, killed), *_ = workers_of(server).items()
        async with clients_of(server) as (doomed, *others):
            for client in (doomed, *others):
                for _ in range(4):
                    answer = await client.post("/v1/chat/completions", json=body_of("echo", 2))
                    assert answer.status_code == 200
            # a request is counted right after its answer has gone out
            await until(doomed, "turnout_requests_total", lambda value: value == 12)
            for client in others:
                assert await metric(client, "turnout_requests_total") == 12

            cut = asyncio.create_task(stream_chat(doomed, body_of("slow", 200)))
            whole = [asyncio.create_task(stream_chat(c, body_of("echo", 100))) for c in others]
            await until(others[0], "turnout_inflight_requests", lambda value: value == 3)
            policy = server.home / "policy.yaml"
            policy.write_text(policy.read_text() + "# changed\n")
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await cut
            for _ in range(20):  # new connections, while it is away
                async with httpx.AsyncClient(headers=server.headers, trust_env=False) as client:
                    url = f"{server.base_url}/v1/chat/completions"
                    answer = await client.post(url, json=body_of("echo", 1), timeout=PATIENCE_S)
                    assert answer.status_code == 200
            assert all(answer.is_done for answer in await asyncio.gather(*whole))
            await until(others[1], "turnout_inflight_requests", lambda value: value == 0)
            await until_started_again(server, path, killed)
        async with clients_of(server) as clients:
            # 12 and 20, and the two whole streams; of the one that was cut nobody is left to tell
            await until(clients[0], "turnout_requests_total", lambda value: value == 34)
            assert [await metric(c, "turnout_requests_total") for c in clients] == [34] * 3
            ready = [(await client.get("/readyz")).json() for client in clients]
            assert len({one["policy"] for one in ready}) == 1


async def test_every_worker_finishes_its_streams_before_it_ends() -> None:
    """P-SHUTDOWN-STREAMS."""
    with serving(ECHO, TURNOUT_WORKERS=str(NUM_WORKERS)) as server:
        async with clients_of(server) as clients:
            streams = [asyncio.create_task(stream_chat(c, body_of("echo", 100))) for c in clients]
            await until(clients[0], "turnout_inflight_requests", lambda value: value == 3)
            os.kill(server.process.pid, signal.SIGTERM)
            answers: list[Answer] = await asyncio.gather(*streams)
            assert all(answer.is_done for answer in answers)
        assert await asyncio.to_thread(server.process.wait, 30) == 0


async def test_workers_share_one_engine_which_drops_what_a_killed_one_asked_for() -> None:
    """Case O-MULTIPROC: what the engine says of itself is not added up over those who hear it."""
    with serving(NATIVE, TURNOUT_WORKERS="2") as server:
        assert len(server.pids("backends.host")) == 1
        (_, killed), _ = workers_of(server).items()
        async with clients_of(server) as (doomed, other):
            body = body_of("smollm2", 5, max_tokens=4000, ignore_eos=True)
            streams = [asyncio.create_task(stream_chat(doomed, body)) for _ in range(4)]
            await until(other, "vllm:num_requests_running", lambda value: value == 4)
            assert await metric(doomed, "vllm:num_requests_running") == 4
            os.kill(killed, signal.SIGKILL)
            ended = await asyncio.gather(*streams, return_exceptions=True)
            assert all(isinstance(one, httpx.TransportError) for one in ended)
            await until(other, "vllm:num_requests_running", lambda value: value == 0)
            assert await metric(other, "vllm:kv_cache_usage_perc") == 0
            assert (await stream_chat(other, body_of("smollm2", 5, max_tokens=4))).is_done
