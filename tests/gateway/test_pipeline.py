"""The life of a request, over real echo backends: ledger, failover, disconnects, spans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from backends.base import Backend, BackendStatus
from backends.echo import EchoBackend
from backends.types import Event, GenerationRequest
from gateway.stores.redis import RedisStore
from tests.gateway.serving import CHAT, POLICY, Gateway, Plain, chat, echo, gateway_over
from tests.valkey import serving_valkey

COMPLETIONS = "/v1/completions"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    backends = {"first": echo("first"), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as running:
        yield running


async def test_answers_whole(gateway: Gateway) -> None:
    answer = await gateway.call(CHAT, chat())
    assert answer.status == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    assert answer.response_headers["x-turnout-backend"] == "first"
    assert answer.response_headers["x-turnout-decision"].endswith("/all")


async def test_streams(gateway: Gateway) -> None:
    answer = await gateway.call(CHAT, chat(stream=True))
    assert answer.response_headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.response_headers["x-accel-buffering"] == "no"
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.is_complete


@pytest.mark.parametrize("stream", [True, False])
async def test_charges_the_exact_count_and_holds_nothing_when_idle(
    gateway: Gateway, stream: bool
) -> None:
    """Q-CHARGE-ONE, Q-STREAM-TPM, Q-RESERVE-STREAM: streamed or not, one ledger."""
    await gateway.call(CHAT, chat(stream=stream))
    assert await gateway.reserved() == 0
    assert await gateway.used("requests") == 1
    assert await gateway.used("tokens") == 3 + 4  # the prompt, the echo and its end


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_an_echoed_prompt_is_charged_once(
    gateway: Gateway, max_tokens: int, stream: bool
) -> None:
    """Q-CHARGE-ONE, I-MAX-TOKENS-ZERO: as a prompt; that it is written down costs nothing."""
    fields = {"prompt": "one two three", "echo": True, "logprobs": 1, "max_tokens": max_tokens}
    answer = await gateway.call(COMPLETIONS, {"model": "echo", "stream": stream, **fields})
    assert answer.status == 200
    assert "one two three" in answer.text
    assert await gateway.reserved() == 0
    assert await gateway.used("tokens") == 3 + max_tokens


async def test_a_client_that_leaves_is_charged_for_what_it_got(tmp_path: Path) -> None:
    """Q-CANCEL-CHARGE: the prompt and the tokens so far, and the backend is told to stop."""
    first = echo("first", token_delay_s=0.01)
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        caller = gateway.caller(CHAT, chat("word " * 50, stream=True))
        caller.leave_after_chunks = 4
        await caller.run()
        assert len(first.aborted) == 1
        assert await gateway.reserved() == 0
        assert 50 < await gateway.used("tokens") < 90


async def test_a_client_that_leaves_before_the_first_token_pays_nothing(tmp_path: Path) -> None:
    """S-DISCONNECT-QUEUED, on a whole answer: nobody else watches for its disconnect."""
    first = echo("first", first_token_delay_s=30.0)
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        caller = gateway.caller(CHAT, chat())
        caller.leave.set()
        await caller.run()
        assert len(first.aborted) == 1
        assert await gateway.used("requests") == 0
        assert await gateway.reserved() == 0
        assert caller.status == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_falls_over_before_the_first_token(tmp_path: Path, stream: bool) -> None:
    """R-NO-FALLBACK-STREAM: the client sees one good answer of the second backend."""
    backends = {"first": echo("first", fail_before=True), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(stream=stream))
        assert answer.status == 200
        assert "three" in answer.text
        if not stream:
            assert answer.response_headers["x-turnout-backend"] == "second"
            assert answer.response_headers["x-turnout-attempts"] == "2"
        assert await gateway.used("requests") == 1


async def test_an_answer_is_never_begun_again(tmp_path: Path) -> None:
    """R-MIDSTREAM-DUP, S-DONE-ONCE: the text once, one error event, and no [DONE]."""
    second = echo("second")
    backends: dict[str, Backend] = {
        "first": echo("first", fail_after_tokens=2),
        "second": Plain(second),
    }
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
        events = answer.events()
        assert (
            "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "one two"
        )
        assert events[-1]["error"]["code"] == "upstream_error"
        assert "[DONE]" not in answer.text
        assert (await second.status()).prompt_tokens_total == 0


async def test_every_backend_failing_is_one_clear_error(tmp_path: Path) -> None:
    """R-FALLBACK-LOOP: each backend at most once."""
    backends = {name: echo(name, fail_before=True) for name in ("first", "second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
        assert answer.status == 502
        assert answer.json()["error"]["code"] == "upstream_error"
        assert await gateway.used("requests") == 0


async def test_a_backend_that_stalls_before_the_first_token_is_passed_over(tmp_path: Path) -> None:
    """R-TTFT-TIMEOUT."""
    policy = POLICY.replace("first_token: 5s", "first_token: 300ms")
    backends = {"first": echo("first", first_token_delay_s=30.0), "second": echo("second")}
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
        assert answer.status == 200
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_backend_that_stalls_mid_stream_ends_in_a_timeout_event(tmp_path: Path) -> None:
    """R-STALL-MIDSTREAM."""
    policy = POLICY.replace("between_tokens: 2s", "between_tokens: 50ms")
    backends: dict[str, Backend] = {
        "first": echo("first", token_delay_s=30.0),
        "second": Plain(echo("second")),
    }
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
        assert answer.events()[-1]["error"]["code"] == "timeout"
        assert await gateway.reserved() == 0
        assert await gateway.used("tokens") == 3 + 1


async def test_a_silent_stream_is_kept_alive_by_comments(tmp_path: Path) -> None:
    """S-KEEPALIVE: between events, never inside one."""
    backends = {"first": echo("first", token_delay_s=0.08), "second": echo("second")}
    async with gateway_over(tmp_path, backends, keep_alive_s=0.02) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
        assert answer.chunks.count(b": keep-alive\n\n") >= 3
        assert all(chunk.endswith(b"\n\n") for chunk in answer.chunks)
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_concurrency_is_given_back(tmp_path: Path) -> None:
    """Q-REJECT-CONSUMES: a refusal by one limit costs nothing in the others."""
    first = echo("first", token_delay_s=30.0)
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        holding = [gateway.caller(CHAT, chat(stream=True)) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            for caller in holding:
                tasks.create_task(caller.run())
            while not all(caller.chunks for caller in holding):
                await asyncio.sleep(0)
            refused = await gateway.call(CHAT, chat())
            for caller in holding:
                caller.leave.set()
        assert refused.status == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert "retry-after" in refused.response_headers
        assert refused.response_headers["x-ratelimit-limit-requests"] == "10"
        assert await gateway.used("requests") == 2
        assert await gateway.reserved() == 0
        again = await gateway.call(CHAT, chat(), headers={})
        assert again.status != 429 or "concurrent" not in again.text


async def test_a_model_that_is_not_the_tenants_looks_like_one_that_does_not_exist(
    gateway: Gateway,
) -> None:
    """Q-MODEL-BYPASS: by name, by query, by repeating the key."""
    hidden = await gateway.call(CHAT, chat() | {"model": "hidden"})
    unknown = await gateway.call(CHAT, chat() | {"model": "nonsense"})
    assert hidden.status == unknown.status == 404
    message = unknown.json()["error"]["message"]
    assert hidden.json()["error"]["message"] == message.replace("nonsense", "hidden")
    by_query = await gateway.call(f"{CHAT}?model=hidden", chat())
    assert by_query.json()["model"] == "echo"


async def test_a_repeated_key_is_refused(gateway: Gateway) -> None:
    """I-DUP-KEYS."""
    body = b'{"model":"echo","\\u006dodel":"hidden","messages":[{"role":"user","content":"x"}]}'
    answer = await gateway.call(CHAT, body)
    assert answer.status == 400
    assert "model" in answer.json()["error"]["message"]


async def test_the_request_id_is_echoed_but_never_used_inside(gateway: Gateway) -> None:
    """I-DUP-REQUEST-ID."""
    headers = {"x-request-id": "test-0"}
    callers = [gateway.caller(CHAT, chat(f"text {i}"), headers=headers) for i in range(2)]
    await asyncio.gather(*(caller.run() for caller in callers))
    assert [c.json()["choices"][0]["message"]["content"] for c in callers] == ["text 0", "text 1"]
    assert callers[0].json()["id"] != callers[1].json()["id"]
    assert all(c.response_headers["x-request-id"] == "test-0" for c in callers)


@pytest.mark.parametrize("given", ["", "x" * 10_000, "a b", "\xe9", "a\tb", "to_live_123456"])
async def test_an_odd_request_id_is_replaced(gateway: Gateway, given: str) -> None:
    """I-DUP-REQUEST-ID and Q-KEY-IN-LOGS: header safe, whatever was sent."""
    answer = await gateway.call(CHAT, chat(), headers={"x-request-id": given})
    assert answer.status == 200
    assert answer.response_headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1/chat/completions/"])
async def test_careless_paths_reach_their_handler(gateway: Gateway, path: str) -> None:
    """http-double-slash, http-trailing-slash."""
    assert (await gateway.call(path, chat())).status == 200


async def test_refuses_newcomers_while_draining(gateway: Gateway) -> None:
    gateway.services.drain.begin(gateway.services.monotonic())
    answer = await gateway.call(CHAT, chat())
    assert answer.status == 503
    assert answer.response_headers["connection"] == "close"
    ready = await gateway.call("/readyz", b"", method="GET")
    assert ready.status == 503


async def test_serves_nobody_until_the_limit_store_is_there(tmp_path: Path) -> None:
    """Nothing is given uncounted; the gateway says why it is not ready, and needs no restart."""
    backends = {"first": echo("first"), "second": echo("second")}
    store = RedisStore.open(f"unix://{tmp_path}/valkey.sock?db=0")
    async with gateway_over(tmp_path, backends, store=store) as gateway:
        answer = await gateway.call(CHAT, chat())
        assert (answer.status, answer.response_headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "server_is_overloaded"
        ready = await gateway.call("/readyz", b"", method="GET")
        assert ready.status == 503
        assert "valkey.sock failed: ConnectionError" in ready.json()["store"]["detail"]
        assert (await gateway.call("/livez", b"", method="GET")).status == 200
        with serving_valkey(tmp_path):
            ready = await gateway.call("/readyz", b"", method="GET")
            assert (ready.status, ready.json()["store"]["ready"]) == (200, True)
            assert (await gateway.call(CHAT, chat())).status == 200
            assert (await gateway.used("requests"), await gateway.reserved()) == (1, 0)


async def test_a_stream_that_outlives_the_drain_timeout_ends_in_an_error_event(
    tmp_path: Path,
) -> None:
    """P-SHUTDOWN-STREAMS."""
    first = echo("first", token_delay_s=0.02)
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        caller = gateway.caller(CHAT, chat("word " * 400, stream=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(caller.run())
            while not caller.chunks:
                await asyncio.sleep(0)
            gateway.services.drain.begin(gateway.services.monotonic() - 1.0)
        assert caller.events()[-1]["error"]["code"] == "shutting_down"
        assert await gateway.reserved() == 0


OUTCOMES = {
    "complete": {},
    "client_disconnect": {"leave_after_chunks": 3},
}


class Broken(EchoBackend):
    """A backend with a bug: it raises what no backend may raise."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        async for event in super().generate(request):
            yield event
            raise RuntimeError("a bug")

    async def status(self) -> BackendStatus:
        return await super().status()


class Noting(EchoBackend):
    """Keeps what it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        async for event in super().generate(request):
            yield event


async def test_a_backend_is_told_whose_a_request_is_whatever_the_client_says(
    tmp_path: Path,
) -> None:
    """By an id that is never used again, as a name may be."""
    first = Noting("first")
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        (tenant,) = await gateway.services.directory.tenants()
        await gateway.call(CHAT, chat(tenant="another", cache_salt="mine"))
        (asked,) = first.asked
        assert (asked.tenant, asked.cache_salt) == (tenant.tenant_id, "mine")


async def test_every_request_ends_its_span_once(tmp_path: Path) -> None:
    """O-SPAN-ABANDON: read to the end, left early, refused, failed midway, and broken by a bug."""
    backends = {
        "good": echo("good", token_delay_s=0.01),
        "midway": echo("midway", fail_after_tokens=1),
        "broken": Broken("broken"),
    }
    policy = POLICY.replace("first: {engine: echo}\n  second: {engine: echo}", "{}")
    names = "\n".join(f"  {name}: {{engine: echo}}" for name in backends)
    policy = f"""\
version: 1
backends:
{names}
models:
  good: {{}}
  midway: {{}}
  broken: {{}}
limits:
  free: {{requests: 100/min}}
plans:
  demo: {{limits: [free], models: "*"}}
routes:
  - {{name: midway, match: {{model: midway}}, use: midway}}
  - {{name: broken, match: {{model: broken}}, use: broken}}
  - {{name: good, use: good}}
defaults: {{model: good}}
"""
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        await gateway.call(CHAT, chat(stream=True) | {"model": "good"})
        leaving = gateway.caller(CHAT, chat("word " * 20, stream=True) | {"model": "good"})
        leaving.leave_after_chunks = 3
        await leaving.run()
        await gateway.call(CHAT, chat(temperature=9))
        await gateway.call(CHAT, chat(stream=True) | {"model": "midway"})
        await gateway.call(CHAT, chat() | {"model": "broken"})
        spans = gateway.spans.get_finished_spans()
        roots = [span for span in spans if span.parent is None]
        assert [dict(span.attributes or {})["turnout.outcome"] for span in roots] == [
            "complete",
            "client_disconnect",
            "rejected",
            "error",
            "error",
        ]
        children = [span for span in spans if span.parent is not None]
        assert len(children) == 4
        known = {span.context.span_id for span in roots if span.context}
        assert all(span.parent and span.parent.span_id in known for span in children)


async def test_a_bug_of_ours_is_a_plain_500_that_tells_nothing(tmp_path: Path) -> None:
    backends = {"first": Broken("first"), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat())
        assert answer.status == 500
        assert "bug" not in answer.text
        assert await gateway.reserved() == 0


async def test_joins_the_clients_trace(gateway: Gateway) -> None:
    """O-TRACEPARENT: a good one is joined, a malformed one starts a new trace."""
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await gateway.call(CHAT, chat(), headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    await gateway.call(CHAT, chat(), headers={"traceparent": "00-0-0-0"})
    spans = gateway.spans.get_finished_spans()
    joined = [s for s in spans if s.context and f"{s.context.trace_id:032x}" == trace_id]
    assert len(joined) == 2
    assert len(spans) == 4


async def test_the_key_shows_nowhere(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    """Q-KEY-IN-LOGS: not in a log at any level, an error body, a span or a metric."""
    caplog.set_level("DEBUG")
    canary = gateway.key[:-1] + ("A" if gateway.key[-1] != "A" else "B")
    answers = [
        await gateway.call(CHAT, chat()),
        await gateway.call(CHAT, chat(), headers={"authorization": f"Bearer {canary}"}),
        await gateway.call(CHAT, chat(), headers={"authorization": f"Basic {canary}"}),
        await gateway.call(f"{CHAT}?key={canary}", chat()),
        await gateway.call("/metrics", b"", method="GET"),
    ]
    told = [answer.text for answer in answers] + [caplog.text]
    told += [span.to_json() for span in gateway.spans.get_finished_spans()]
    for secret in (gateway.key, canary):
        assert all(secret not in text for text in told)


async def test_metrics_count_what_was_served(gateway: Gateway) -> None:
    """O-TTFT-HIST: whole answers have a first token, too; refused ones have none."""
    await gateway.call(CHAT, chat())
    await gateway.call(CHAT, chat() | {"model": "nonsense"})
    text = (await gateway.call("/metrics", b"", method="GET")).text
    assert (
        'turnout_requests_total{code="200",endpoint="chat",model="echo",outcome="complete",'
        'tenant="acme"} 1.0' in text
    )
    assert 'turnout_time_to_first_token_seconds_count{model="echo"} 1.0' in text
    assert 'model="other"' in text
    assert "nonsense" not in text
    assert "turnout_inflight_requests 0.0" in text


async def test_a_busy_backend_is_healthy(tmp_path: Path) -> None:
    """G-HEALTH-BUSY: probes take no slot and wait for nobody."""
    first = echo("first", token_delay_s=30.0, max_concurrent_requests=1)
    async with gateway_over(tmp_path, {"first": first, "second": echo("second")}) as gateway:
        holding = gateway.caller(CHAT, chat(stream=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(holding.run())
            while not holding.chunks:
                await asyncio.sleep(0)
            for path in ("/health", "/livez", "/readyz", "/", "/ping"):
                assert (await gateway.call(path, b"", method="GET")).status == 200
            holding.leave.set()


async def test_a_closed_backend_is_not_healthy(tmp_path: Path) -> None:
    """P-HEALTH-LOADING: TGI's and vLLM's word for it."""
    backends = {"first": echo("first"), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        for backend in backends.values():
            await backend.aclose()
        assert (await gateway.call("/health", b"", method="GET")).json()["error"] == "unhealthy"
        assert (await gateway.call("/livez", b"", method="GET")).status == 200
        refused = await gateway.call(CHAT, chat())
        assert refused.status == 503
        assert "retry-after" in refused.response_headers


async def test_metrics_that_fail_do_not_fail_a_request(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """O-COUNTER-CRASH: here the registry lost a label."""
    gateway.services.metrics.requests._labelnames = ("nonsense",)
    answer = await gateway.call(CHAT, chat())
    assert answer.status == 200
    assert answer.is_complete
    assert "was not recorded" in caplog.text


async def test_a_request_larger_than_its_whole_limit_is_told_what_to_change(
    gateway: Gateway,
) -> None:
    """I-FANOUT: choices count in the reservation, and no wait would help."""
    answer = await gateway.call(CHAT, chat(n=8, max_tokens=200))
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "max_tokens"
    assert await gateway.used("requests") == 0


async def test_a_field_that_nothing_reads_is_reported(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """chat-unknown-fields: the request is served, and the log says what was left aside."""
    caplog.set_level("INFO")
    answer = await gateway.call(CHAT, chat(num_ctx=4096, user="u"))
    assert answer.status == 200
    assert "nothing reads 'num_ctx'" in caplog.text
    assert "4096" not in caplog.text
