"""What requests leave in the books, on a gateway over echo backends: one record each, and right."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend
from backends.echo import EchoBackend
from backends.types import Event, Finished, GenerationRequest, Usage
from gateway.dialects.base import Stamp
from gateway.dialects.openai_chat import ChatExchange, OpenAIChat
from gateway.pipeline import GenerationEndpoint
from gateway.usage.record import UsageRecord
from tests.clock import FakeClock
from tests.gateway.serving import CHAT, POLICY, Caller, Gateway, chat, echo, gateway_over

PRICED = POLICY.replace(
    "second: {engine: echo}",
    "second: {engine: echo, price: {input: 2, cached: 1, output: 10.5}}\ncurrency: EUR",
)


def pair(**options: Any) -> dict[str, EchoBackend]:
    """The two backends of the policy; the options are the first one's."""
    return {"first": echo("first", **options), "second": echo("second")}


async def only_record(gateway: Gateway) -> UsageRecord:
    (record,) = await gateway.records()
    return record


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_leaves_one_record_that_says_who_what_and_where(
    tmp_path: Path, stream: bool
) -> None:
    """Q-CHARGE-ONE, Q-STREAM-TPM: streamed or not."""
    async with gateway_over(tmp_path, pair()) as gateway:
        began_s = time.time()
        answer = await gateway.call(CHAT, chat(stream=stream, model="parrot"))
        record = await only_record(gateway)
        ended_s = time.time()
        (tenant,) = await gateway.services.directory.tenants()
        (key,) = await gateway.services.directory.keys()
    assert began_s <= record.time_s <= ended_s
    assert (record.tenant_id, record.tenant, record.plan) == (tenant.tenant_id, "acme", "demo")
    assert record.key_id == key.key_id
    assert (record.model, record.backend, record.route) == ("echo", "first", "all")
    assert record.decision_id == answer.response_headers["x-turnout-decision"]
    assert (record.endpoint, record.stream) == ("chat", stream)
    assert (record.status, record.outcome, record.num_attempts) == (200, "complete", 1)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 4)
    assert not record.estimated
    assert record.first_token_s is not None
    assert 0.0 <= record.queue_s <= record.first_token_s <= record.total_s


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failover_is_charged_once_at_the_price_of_the_backend_that_answered(
    tmp_path: Path, stream: bool
) -> None:
    """Q-FALLBACK-BUDGET: the failed attempt costs nothing."""
    async with gateway_over(tmp_path, pair(fail_before=True), policy=PRICED) as gateway:
        await gateway.call(CHAT, chat(stream=stream))
        record = await only_record(gateway)
    assert (record.backend, record.num_attempts) == ("second", 2)
    assert (record.cost_micros, record.currency) == (3 * 2 + 4 * 10.5, "EUR")


async def test_tokens_of_a_backend_without_a_price_cost_not_nothing_but_nobody_knows_what(
    tmp_path: Path,
) -> None:
    async with gateway_over(tmp_path, pair(), policy=PRICED) as gateway:
        await gateway.call(CHAT, chat())
        assert (await only_record(gateway)).cost_micros is None


async def test_a_client_that_leaves_pays_for_what_it_got(tmp_path: Path) -> None:
    """Q-CANCEL-CHARGE: exactly, since the backend had counted the prompt."""
    async with gateway_over(tmp_path, pair(token_delay_s=0.01)) as gateway:
        caller = gateway.caller(CHAT, chat("word " * 50, stream=True))
        caller.leave_after_chunks = 4
        await caller.run()
        record = await only_record(gateway)
        used = await gateway.used("tokens")
    assert record.outcome == "client_disconnect"
    assert record.prompt_tokens + record.completion_tokens == used
    assert not record.estimated


async def test_a_client_that_leaves_before_the_first_token_pays_nothing(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair(first_token_delay_s=30.0), policy=PRICED) as gateway:
        caller = gateway.caller(CHAT, chat())
        caller.leave.set()
        await caller.run()
        record = await only_record(gateway)
    assert (record.outcome, record.cost_micros) == ("client_disconnect", 0)
    assert (record.prompt_tokens, record.completion_tokens, record.first_token_s) == (0, 0, None)


async def test_a_stream_that_breaks_is_charged_up_to_there(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair(fail_after_tokens=2), policy=SINGLE) as gateway:
        await gateway.call(CHAT, chat(stream=True))
        record = await only_record(gateway)
    assert (record.outcome, record.backend, record.num_attempts) == ("error", "first", 1)
    assert (record.prompt_tokens, record.completion_tokens) == (3, 2)


async def test_what_is_refused_is_recorded_without_a_charge(tmp_path: Path) -> None:
    """Q-REJECT-CONSUMES: by a limit, for its body, for its model, for its size."""
    policy = PRICED.replace("requests: 10/min", "requests: 1/min")
    async with gateway_over(tmp_path, pair(), policy=policy) as gateway:
        await gateway.call(CHAT, chat())
        refused = [chat(), chat(temperature=9), chat(model="nonsense"), chat(max_tokens=5000)]
        for body in refused:
            await gateway.call(CHAT, body)
        _, *records = await gateway.records()
    assert [record.status for record in records] == [429, 400, 404, 400]
    assert {record.outcome for record in records} == {"rejected"}
    assert {(record.cost_micros, record.prompt_tokens) for record in records} == {(0, 0)}
    assert [record.model for record in records] == ["echo", "", "", "echo"]


async def test_without_a_good_key_nobody_could_be_billed(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair()) as gateway:
        await gateway.call(CHAT, chat(), headers={"authorization": "Bearer nonsense"})
        assert await gateway.records() == []


def kept_in(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("usage.db*"))


async def test_neither_the_key_nor_what_was_said_is_kept(tmp_path: Path) -> None:
    """Q-KEY-IN-LOGS: in no file of the database."""
    async with gateway_over(tmp_path, pair()) as gateway:
        await gateway.call(CHAT, chat("canary", model="nightingale"))
        await gateway.call(CHAT, chat("canary"))
        assert len(await gateway.records()) == 2
        kept = kept_in(tmp_path)
        assert b"acme" in kept
        for secret in (gateway.key, "canary", "nightingale"):
            assert secret.encode() not in kept


async def test_an_answer_that_the_drain_ends_says_so(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair(token_delay_s=0.02)) as gateway:
        caller = gateway.caller(CHAT, chat("word" + " word" * 399, stream=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(caller.run())
            while not caller.chunks:
                await asyncio.sleep(0)
            gateway.services.drain.begin(gateway.services.monotonic() - 1.0)
        record = await only_record(gateway)
    assert record.outcome == "drained"
    assert record.prompt_tokens == 400


async def test_a_request_that_the_server_cuts_off_is_recorded_too(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair(token_delay_s=0.02)) as gateway:
        caller = gateway.caller(CHAT, chat("word " * 400, stream=True))
        running = asyncio.create_task(caller.run())
        while not caller.chunks:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        record = await only_record(gateway)
        assert record.outcome == "drained"
        assert record.prompt_tokens + record.completion_tokens == await gateway.used("tokens")


class Guessing:
    """A backend that cannot count prompts, and says of its usage that it is a guess."""

    def __init__(self, *, estimated: bool, **options: Any) -> None:
        self._echo = echo("first", **options)
        self._estimated = estimated
        self.name = "first"
        self.status = self._echo.status
        self.aclose = self._echo.aclose

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        async for event in self._echo.generate(request):
            if isinstance(event, Finished):
                usage = Usage(prompt_tokens=30, completion_tokens=7, estimated=self._estimated)
                yield Finished(reasons=event.reasons, usage=usage)
            else:
                yield event


SINGLE = POLICY.replace("fallback: [second]", "fallback: []")


@pytest.mark.parametrize("estimated", [True, False])
async def test_usage_is_estimated_if_the_backend_says_so(tmp_path: Path, estimated: bool) -> None:
    backends: dict[str, Backend] = {
        "first": Guessing(estimated=estimated),
        "second": echo("second"),
    }
    async with gateway_over(tmp_path, backends, policy=SINGLE) as gateway:
        await gateway.call(CHAT, chat())
        record = await only_record(gateway)
    assert record.estimated is estimated
    assert (record.prompt_tokens, record.completion_tokens) == (30, 7)


async def test_a_cut_answer_is_estimated_if_its_backend_cannot_count(tmp_path: Path) -> None:
    backends: dict[str, Backend] = {
        "first": Guessing(estimated=False, fail_after_tokens=1),
        "second": echo("second"),
    }
    async with gateway_over(tmp_path, backends, policy=SINGLE) as gateway:
        await gateway.call(CHAT, chat(stream=True))
        assert (await only_record(gateway)).estimated


async def test_with_a_full_queue_requests_are_refused_before_they_run(tmp_path: Path) -> None:
    """Nobody is served without a record; a running request has its place already."""
    first = echo("first", token_delay_s=30.0)
    backends = {"first": first, "second": echo("second")}
    async with gateway_over(tmp_path, backends, usage_capacity=1) as gateway:
        running = gateway.caller(CHAT, chat(stream=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.run())
            while not running.chunks:
                await asyncio.sleep(0)
            refused = await gateway.call(CHAT, chat())
            running.leave.set()
        assert refused.status == 503
        assert "retry-after" in refused.response_headers
        assert len(await gateway.records()) == 1
        assert (await gateway.call(CHAT, chat(max_tokens=1))).status == 200


async def test_metrics_that_fail_do_not_cost_the_record(tmp_path: Path) -> None:
    """O-COUNTER-CRASH."""
    async with gateway_over(tmp_path, pair()) as gateway:
        gateway.services.metrics.requests._labelnames = ("nonsense",)
        await gateway.call(CHAT, chat())
        assert (await only_record(gateway)).completion_tokens == 4


MIXED = """\
version: 1
currency: EUR
backends:
  good: {engine: echo, price: {input: 0.15, cached: 0.075, output: 0.60}}
  slow: {engine: echo}
  down: {engine: echo}
  midway: {engine: echo}
models: {good: {}, slow: {}, shaky: {}, midway: {}, gone: {}}
limits:
  mixed: {requests: 1M/h, tokens: 100M/h, concurrent: 12}
plans:
  demo: {limits: [mixed], models: "*"}
routes:
  - {name: slow, match: {model: slow}, use: slow}
  - {name: shaky, match: {model: shaky}, use: down, fallback: [good]}
  - {name: midway, match: {model: midway}, use: midway, fallback: [good]}
  - {name: gone, match: {model: gone}, use: down}
  - {name: good, use: good}
defaults: {model: good, estimate_output: 100}
"""


def random_caller(gateway: Gateway, choose: random.Random) -> Caller:
    """A request that ends in one of all the ways there are."""
    body = chat(
        "word " * choose.randint(1, 30),
        model=choose.choice(["good", "slow", "shaky", "midway", "gone", "nonsense"]),
        stream=choose.random() < 0.6,
        n=choose.choice([1, 1, 2]),
    )
    if choose.random() < 0.3:
        body["max_tokens"] = choose.choice([1, 5, 200_000_000])
    caller = gateway.caller(CHAT, b"{" if choose.random() < 0.05 else body)
    if choose.random() < 0.3:
        caller.leave_after_chunks = choose.randint(1, 10)
    elif choose.random() < 0.1:
        caller.leave.set()
    return caller


@pytest.mark.parametrize("seed", range(5))
async def test_records_and_counters_add_up_to_the_same(tmp_path: Path, seed: int) -> None:
    """Q-COUNTER-DOUBLE: streams, disconnects, failovers, refusals and servers' kills, all mixed."""
    backends = {
        "good": echo("good"),
        "slow": echo("slow", token_delay_s=0.001),
        "down": echo("down", fail_before=True),
        "midway": echo("midway", fail_after_tokens=3),
    }
    choose = random.Random(seed)
    async with gateway_over(tmp_path, backends, policy=MIXED, limit_clock=FakeClock()) as gateway:
        callers = [random_caller(gateway, choose) for _ in range(60)]
        running = [asyncio.create_task(caller.run()) for caller in callers]
        for killed in choose.sample(running, 5):
            for _ in range(choose.randint(0, 50)):
                await asyncio.sleep(0)
            killed.cancel()
        await asyncio.wait(running)
        records = await gateway.records()
        tokens = [record.prompt_tokens + record.completion_tokens for record in records]
        assert sum(tokens) == await gateway.used("tokens") > 0
        assert sum(map(bool, tokens)) == await gateway.used("requests")
        assert await gateway.reserved() == 0
    assert len({record.request_id for record in records}) == len(records)
    assert len(records) >= len(callers) - 5  # who is killed before the key is read leaves none
    assert {"complete", "client_disconnect", "rejected", "error"} <= {
        record.outcome for record in records
    }
    priced = {record.backend for record in records if record.cost_micros}
    assert priced == {"good"}


class Mistaken(OpenAIChat):
    """A dialect with a bug."""

    def parse(self, body: bytes, stamp: Stamp) -> ChatExchange:
        raise RuntimeError("a bug")


async def test_a_bug_of_ours_is_an_error_to_the_client_and_in_the_books(tmp_path: Path) -> None:
    async with gateway_over(tmp_path, pair()) as gateway:
        caller = gateway.caller(CHAT, chat())
        caller.app = GenerationEndpoint("chat", CHAT, Mistaken())
        await caller.run()
        record = await only_record(gateway)
    assert caller.status == 500
    assert "a bug" not in caller.text
    assert (record.status, record.outcome, record.prompt_tokens) == (500, "error", 0)
