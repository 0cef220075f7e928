"""What a plan says reaches the engine, and what the engine says of time and room its client.

Over a real engine process that counts, whose time is simulated where it matters.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend
from backends.client import EngineClient
from backends.echo import EchoBackend, EchoOptions
from backends.local import LocalBackend
from backends.types import Event, GenerationRequest
from tests.backends.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.backends.conftest import EngineProcesses
from tests.backends.counting_engine import journal_at
from tests.clock import FakeClock
from tests.gateway.serving import Caller, Gateway, gateway_over

POLICY = """\
version: 1
backends:
  first: {engine: native, model: counting}
  second: {engine: echo}
models: {counting: {}}
plans:
  demo: {models: "*", priority: high, weight: 4}
  batch: {models: "*", priority: low, weight: 0.5}
routes:
  - {name: all, use: first, fallback: [second]}
defaults:
  timeout: {first_token: 15s, between_tokens: 15s, total: 20s}
"""
ALONE = POLICY.replace(", fallback: [second]", "")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "counting", "messages": MESSAGES, "max_tokens": 50},
    COMPLETIONS: {"model": "counting", "prompt": "a", "max_tokens": 50},
    "/generate": {"inputs": "a", "parameters": {"max_new_tokens": 50, "details": True}},
}


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[EngineProcesses]:
    processes = EngineProcesses(tmp_path)
    yield processes
    processes.kill_all()


@asynccontextmanager
async def serving(
    engines: EngineProcesses, home: Path, *, policy: str = POLICY, **options: object
) -> AsyncIterator[Gateway]:
    """A gateway over an engine with these options and, to fall back on, an echo."""
    process = engines.start(vocab_size=VOCAB_SIZE, **options)
    first = LocalBackend(
        "first",
        EngineClient(process.socket_path),
        byte_tokenizer(),
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    backends: dict[str, Backend] = {"first": first, "second": EchoBackend("second")}
    async with gateway_over(home, backends, policy=policy) as gateway:
        await first._client.until_ready()
        yield gateway


async def with_another_tenant(gateway: Gateway, *, plan: str) -> Gateway:
    """The same gateway, for a second tenant's caller."""
    directory = gateway.services.directory
    await directory.create_tenant("another", plan=plan)
    key, _ = await directory.create_key("another", name="test", now_s=time.time())
    return replace(gateway, key=key)


async def is_second_idle(gateway: Gateway) -> bool:
    return (await gateway.services.backends["second"].status()).prompt_tokens_total == 0


async def test_each_tenant_s_plan_reaches_the_engine_whatever_its_client_says(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    async with serving(engines, tmp_path, journal=str(journal)) as gateway:
        other = await with_another_tenant(gateway, plan="batch")
        ids = {t.name: t.tenant_id for t in await gateway.services.directory.tenants()}
        hints = {"priority": 99, "weight": 99, "timeout_s": 9999, "tenant": "another"}
        for path, body in BODIES.items():
            assert (await gateway.call(path, body | hints)).status == 200
            assert (await other.call(path, body)).status == 200

    asked = journal_at(journal)
    told = [(one.tenant, one.priority, one.weight) for one in asked]
    assert told == [(ids["acme"], 1, 4.0), (ids["another"], -1, 0.5)] * 3
    assert all(one.timeout_s is not None and 3.0 < one.timeout_s <= 18.0 for one in asked)


async def test_a_whole_answer_whose_time_is_over_is_what_came_until_then(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    """Tokens after 6 s and 12 s; the engine's time is up before 18 s, the route's after 20 s."""
    async with serving(engines, tmp_path, step_s=6.0, is_simulated=True) as gateway:
        answers = {path: await gateway.call(path, body) for path, body in BODIES.items()}
        listed = await gateway.call("/", BODIES["/generate"])
        used = [
            answer.json()["usage"]["completion_tokens"] for answer in list(answers.values())[:2]
        ]

    chat, completion, generated = (answer.json() for answer in answers.values())
    assert (chat["choices"][0]["message"]["content"], completion["choices"][0]["text"]) == (
        "bc",
        "bc",
    )
    assert generated["generated_text"] == "bc"
    assert listed.json()[0]["details"] == generated["details"]
    reasons = [answer["choices"][0]["finish_reason"] for answer in (chat, completion)]
    assert [*reasons, generated["details"]["finish_reason"]] == ["length"] * 3
    assert [*used, generated["details"]["generated_tokens"]] == [2] * 3


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_whose_time_is_over_ends_well_in_openai_s_dialects(
    engines: EngineProcesses, tmp_path: Path, path: str
) -> None:
    """One choice never ran, and one held text back for a stop string."""
    options: dict[str, Any] = {"step_s": 6.0, "is_simulated": True, "max_num_seqs": 1}
    body = BODIES[path] | {"stream": True, "n": 2, "stop": ["cd"]}
    async with serving(engines, tmp_path, **options) as gateway:
        answer = await gateway.call(path, body)

    texts, reasons = ["", ""], ["", ""]
    for event in answer.events():
        (choice,) = event["choices"]
        texts[choice["index"]] += (
            choice["delta"].get("content", "") if path == CHAT else choice["text"]
        )
        reasons[choice["index"]] += choice["finish_reason"] or ""
    assert (texts, reasons) == (["bc", ""], ["length", "length"])
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_stream_whose_time_is_over_ends_well_in_tgi_s_dialect(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    """The last event's token is none: it has the text that was held back."""
    body = {"inputs": "a", "parameters": {"details": True, "stop": ["cd"]}}
    async with serving(engines, tmp_path, step_s=6.0, is_simulated=True) as gateway:
        answer = await gateway.call("/generate_stream", body)

    *_, last = events = answer.events()
    assert [event["token"]["text"] for event in events] == ["b", "", "c"]
    assert last["generated_text"] == "bc"
    assert (last["token"]["id"], last["token"]["logprob"]) == (0, None)
    assert last["details"]["finish_reason"] == "length"
    assert last["details"]["generated_tokens"] == 2


async def test_an_answer_whose_time_is_over_is_paid_for_as_far_as_it_came(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    policy = POLICY.replace('demo: {models: "*"', 'demo: {limits: [all], models: "*"').replace(
        "plans:", "limits: {all: {tokens: 10k/min}}\nplans:"
    )
    options: dict[str, Any] = {"step_s": 6.0, "is_simulated": True}
    async with serving(engines, tmp_path, policy=policy, **options) as gateway:
        await gateway.call(COMPLETIONS, BODIES[COMPLETIONS])
        assert await gateway.used("tokens") == 1 + 2
        assert await gateway.reserved() == 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_no_token_in_time_is_a_timeout_that_no_other_backend_is_tried_for(
    engines: EngineProcesses, tmp_path: Path, path: str, stream: bool
) -> None:
    body = BODIES[path]
    if stream and path == "/generate":
        path = "/generate_stream"
    elif stream:
        body = body | {"stream": True}
    async with serving(engines, tmp_path, step_s=30.0, is_simulated=True) as gateway:
        answer = await gateway.call(path, body)
        assert await is_second_idle(gateway)
        assert await gateway.used("requests") == 0

    assert answer.status == 504
    assert "time was over" in answer.text
    if path in (CHAT, COMPLETIONS):
        assert answer.json()["error"]["code"] == "timeout"
    else:
        assert answer.json()["error_type"] == "generation"


class Slow(EchoBackend):
    """Takes 25 s by the gateway's clock to say that it is not there."""

    def __init__(self, name: str, gateway_clock: FakeClock) -> None:
        super().__init__(name, EchoOptions(fail_before=True))
        self._gateway_clock = gateway_clock

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self._gateway_clock.advance(25.0)
        async for event in super().generate(request):
            yield event


async def test_no_attempt_begins_when_the_time_is_over(tmp_path: Path) -> None:
    """R-TTFT-TIMEOUT: one total deadline over all attempts."""
    clock = FakeClock()
    backends = {"first": Slow("first", clock), "second": EchoBackend("second")}
    async with gateway_over(tmp_path, backends, policy=POLICY) as started:
        gateway = replace(started, services=replace(started.services, monotonic=clock))
        answer = await gateway.call(CHAT, BODIES[CHAT])
        assert await is_second_idle(gateway)

    assert answer.status == 502
    assert answer.response_headers["x-turnout-attempts"] == "1"


@asynccontextmanager
async def full(gateway: Gateway) -> AsyncIterator[None]:
    """While somebody else has the only place in the engine."""
    body = BODIES[CHAT] | {"stream": True, "ignore_eos": True, "max_tokens": 90_000}
    holder: Caller = gateway.caller(CHAT, body)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(holder.run())
        while len(holder.chunks) < 2:
            await asyncio.sleep(0)
        yield
        holder.leave.set()


FULL: dict[str, Any] = {"max_num_seqs": 1, "max_waiting": 0, "step_s": 0.001}


@pytest.mark.parametrize(("path", "status"), [(CHAT, 503), (COMPLETIONS, 503), ("/generate", 429)])
async def test_a_full_engine_s_estimate_reaches_the_client(
    engines: EngineProcesses, tmp_path: Path, path: str, status: int
) -> None:
    """G-LOAD-DROP: in whole seconds, rounded up, and in milliseconds for those who read them."""
    options = {**FULL, "retry_after_s": 2.25}
    async with serving(engines, tmp_path, policy=ALONE, **options) as gateway, full(gateway):
        answer = await gateway.call(path, BODIES[path])

    assert answer.status == status
    assert answer.json()["error_type"] == "overloaded"
    told = {name: answer.response_headers[name] for name in ("retry-after", "retry-after-ms")}
    assert told == {"retry-after": "3", "retry-after-ms": "2250"}


async def test_a_full_engine_without_an_estimate_is_worth_another_try_in_a_second(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    async with serving(engines, tmp_path, policy=ALONE, **FULL) as gateway, full(gateway):
        answer = await gateway.call(CHAT, BODIES[CHAT])

    assert (answer.status, answer.response_headers["retry-after"]) == (503, "1")


async def test_a_full_engine_s_request_goes_to_the_next_backend_at_once(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    options = {**FULL, "retry_after_s": 600.0}
    async with serving(engines, tmp_path, **options) as gateway, full(gateway):
        answer = await gateway.call(CHAT, BODIES[CHAT])

    assert (answer.status, answer.response_headers["x-turnout-backend"]) == (200, "second")


async def test_readiness_and_info_say_whether_the_engine_is_deterministic(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    async with serving(engines, tmp_path) as gateway:
        ready = json.loads((await gateway.call("/readyz", b"", method="GET")).text)
        info = json.loads((await gateway.call("/info", b"", method="GET")).text)

    assert ready["backends"]["first"]["deterministic"] is True
    assert info["deterministic"] is True
