"""Every error a client can meet, as openai-python sees it: the class it raises, what that says,
whether it asks again, and how long it waits before it does.

No test waits: see `tests.e2e.openai_refusals`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from gateway.config import Settings
from gateway.tenancy.database import open_directory
from gateway.tenancy.key_rules import parse_rules
from gateway.tenancy.keys import ENTROPY_BYTES, mint
from tests.e2e.openai_error_table import (
    AT_ITS_OWN_PACE,
    AT_ONCE,
    BODY_LIMIT_BYTES,
    POLICY,
    QUOTA,
    WHEN_TOLD,
    Row,
    chat,
)
from tests.e2e.openai_refusals import MAX_RETRIES, Refusal, refusal
from tests.e2e.running import Server, serving

pytestmark = pytest.mark.e2e

PLANS = ("requests", "tokens", "alone", "hourly", "daily", "monthly", "money", "narrow")
RULES = {
    "afar": parse_rules(networks=["203.0.113.0/24"]),
    "lists": parse_rules(scopes=["models"]),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(POLICY, TURNOUT_BODY_LIMIT_BYTES=str(BODY_LIMIT_BYTES)) as running:
        yield running


@pytest.fixture(scope="module")
def keys(server: Server) -> dict[str, str]:
    """A key of a tenant on each plan, and one of each kind that is refused."""
    return asyncio.run(_issue(server))


async def _issue(server: Server) -> dict[str, str]:
    now_s = time.time()
    directory = await open_directory(Settings(home=server.home))
    try:
        keys = {"demo": server.key, "unknown": mint(bytes(ENTROPY_BYTES)), "malformed": "secret"}
        for plan in PLANS:
            await directory.create_tenant(plan, plan=plan)
            keys[plan], _ = await directory.create_key(plan, name="", now_s=now_s)
        for name, rules in RULES.items():
            keys[name], _ = await directory.create_key(
                "narrow", name=name, now_s=now_s, rules=rules
            )
        keys["expired"], _ = await directory.create_key(
            "narrow", name="expired", now_s=now_s, expires_s=now_s
        )
        keys["revoked"], record = await directory.create_key("narrow", name="revoked", now_s=now_s)
        await directory.revoke_key(record.key_id, now_s=now_s)
    finally:
        await directory.aclose()
    return keys


@pytest.mark.parametrize("row", AT_ONCE, ids=lambda row: row.name)
def test_what_no_wait_would_mend_is_raised_at_once(
    server: Server, keys: dict[str, str], row: Row
) -> None:
    """R-RETRY-4XX: one request, no wait. Q-KEY-IN-LOGS: the key does not come back in the error."""
    refused = refusal(server.base_url, keys[row.key], row.ask)
    check(refused, row)
    assert len(refused.answers) == 1
    assert refused.waits_s == []
    assert "retry-after" not in refused.headers
    assert refused.headers.get("www-authenticate") == ("Bearer" if row.status == 401 else None)
    assert refused.headers.get("allow") == ("POST" if row.status == 405 else None)
    assert keys[row.key] not in refused.answers[0].text
    check_request_ids(refused)


@pytest.mark.parametrize("row", WHEN_TOLD, ids=lambda row: row.name)
def test_a_client_comes_back_when_it_was_told_to(
    server: Server, keys: dict[str, str], row: Row
) -> None:
    """Q-CLOCK-STEP: a limit per minute asks for a minute at most; openai reads `retry-after-ms`."""
    with limit_used_up(server, keys[row.key], row.name):
        refused = refusal(server.base_url, keys[row.key], row.ask)
    check(refused, row)
    assert len(refused.answers) == 1 + MAX_RETRIES
    assert refused.waits_s == refused.waits_asked_for_s
    assert all(0 < wait_s <= 60 for wait_s in refused.waits_s)
    for answer in refused.answers:
        wait_ms = int(answer.headers["retry-after-ms"])
        assert answer.headers["retry-after"] == str(math.ceil(wait_ms / 1000))
        assert "x-should-retry" not in answer.headers
    check_request_ids(refused)
    if row.name in ("requests", "tokens"):
        assert refused.headers[f"x-ratelimit-limit-{row.name}"] in ("1", "20")
        assert int(refused.headers[f"x-ratelimit-remaining-{row.name}"]) < 20
        assert refused.headers[f"x-ratelimit-reset-{row.name}"].endswith("s")


@pytest.mark.parametrize("row", AT_ITS_OWN_PACE, ids=lambda row: row.name)
def test_a_failure_that_says_no_time_is_repeated_at_the_clients_own_pace(
    server: Server, keys: dict[str, str], row: Row
) -> None:
    """openai waits half a second, then one, less a quarter by chance."""
    refused = refusal(server.base_url, keys[row.key], row.ask)
    check(refused, row)
    assert len(refused.answers) == 1 + MAX_RETRIES
    assert "retry-after" not in refused.headers
    assert refused.headers["x-turnout-attempts"] == "1"
    for wait_s, most_s in zip(refused.waits_s, (0.5, 1.0), strict=True):
        assert 0.75 * most_s <= wait_s <= most_s


def test_openai_gives_up_at_once_on_a_wait_of_many_minutes(
    server: Server, keys: dict[str, str]
) -> None:
    """It waits for two minutes at most; the caller sees how long it would have been."""
    with limit_used_up(server, keys["hourly"], "requests"):
        refused = refusal(server.base_url, keys["hourly"], chat())
    assert type(refused.error) is openai.RateLimitError
    assert refused.error.code == "rate_limit_exceeded"
    assert len(refused.answers) == 1
    assert refused.waits_s == []
    assert 120 < int(refused.headers["retry-after"]) <= 3600
    assert "x-should-retry" not in refused.headers


@pytest.mark.parametrize(
    ("plan", "model", "longest_days"),
    [("daily", "echo", 1), ("monthly", "echo", 31), ("money", "priced", 31)],
)
def test_a_day_or_month_that_is_used_up_is_not_asked_again(
    server: Server, keys: dict[str, str], plan: str, model: str, longest_days: int
) -> None:
    """Q-RESET: not even if it is over in a moment: `x-should-retry: false`. The wait is the true
    one, to the end of the period."""
    with server.client(key=keys[plan]) as client:
        body = {"model": model, "prompt": "one two three", "max_tokens": 10}
        assert client.post("/v1/completions", json=body).status_code == 200
    refused = refusal(server.base_url, keys[plan], chat(model))
    check(refused, QUOTA)
    assert len(refused.answers) == 1
    assert refused.waits_s == []
    assert refused.headers["x-should-retry"] == "false"
    assert 0 < int(refused.headers["retry-after"]) <= longest_days * 86_400


def test_an_error_inside_a_stream_is_raised_and_never_repeated(server: Server) -> None:
    """R-MIDSTREAM-DUP: what came before it was read, and the answer does not look whole."""
    with (
        OpenAI(base_url=f"{server.base_url}/v1", api_key=server.key) as client,
        stream(client, "cutting") as chunks,
    ):
        pieces: list[str] = []
        with pytest.raises(openai.APIError) as caught:
            pieces.extend(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert "".join(pieces) == "one two"
    assert type(caught.value) is openai.APIError  # it has no status: the answer's was 200
    assert caught.value.code == "upstream_error"
    assert caught.value.type == "server_error"
    assert caught.value.param is None
    assert "told to fail after 2 tokens" in caught.value.message


def test_no_done_follows_an_error_inside_a_stream(server: Server) -> None:
    body = {"model": "cutting", "prompt": "one two three", "stream": True}
    with server.client() as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    events = [line for line in answer.text.split("\n\n") if line]
    assert '"code":"upstream_error"' in events[-1]
    assert sum('"error"' in event for event in events) == 1
    assert "[DONE]" not in answer.text


def test_a_stream_that_fails_before_its_first_token_has_a_status(server: Server) -> None:
    """G-STREAM-STATUS."""
    refused = refusal(server.base_url, server.key, lambda client: stream(client, "failing"))
    assert refused.error.status_code == 502
    assert refused.error.code == "upstream_error"
    assert len(refused.answers) == 1 + MAX_RETRIES


async def test_the_async_client_waits_the_same(
    server: Server, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[httpx2.Response] = []
    waits_s: list[float] = []

    async def keep(answer: httpx2.Response) -> None:
        answers.append(answer)

    async def record(wait_s: float) -> None:
        waits_s.append(wait_s)

    monkeypatch.setattr("openai._base_client.anyio.sleep", record)  # openai's own sleep, not ours
    transport = httpx2.AsyncClient(trust_env=False, event_hooks={"response": [keep]})
    with limit_used_up(server, keys["requests"], "requests"):
        async with AsyncOpenAI(
            base_url=f"{server.base_url}/v1", api_key=keys["requests"], http_client=transport
        ) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                await client.completions.create(model="echo", prompt="one")
    assert caught.value.code == "rate_limit_exceeded"
    assert caught.value.type == "requests"
    asked_for_s = [int(answer.headers["retry-after-ms"]) / 1000 for answer in answers]
    assert len(asked_for_s) == 1 + MAX_RETRIES
    assert waits_s == asked_for_s[:-1]


def check(refused: Refusal, row: Row) -> None:
    """That an error is the one of its row, in the shape that all of them have."""
    error = refused.error
    assert type(error) is row.error
    assert error.status_code == row.status
    assert error.code == row.code
    assert error.type == row.type
    assert error.param == row.param
    assert row.says in error.message
    assert refused.headers["content-type"] == "application/json"
    document = refused.body["error"]
    assert document.keys() == {"message", "type", "param", "code"}
    assert document["code"] is None or isinstance(document["code"], str)  # a number never
    assert error.body == document


def check_request_ids(refused: Refusal) -> None:
    """That the exception has the id of the last request, and that each has one of its own."""
    ids = [answer.headers["x-request-id"] for answer in refused.answers]
    assert len(set(ids)) == len(ids)
    assert ids[-1].startswith("req_")
    assert refused.error.request_id == ids[-1]


@contextmanager
def limit_used_up(server: Server, key: str, limit: str) -> Iterator[None]:
    """For as long as the block runs, one more request is too many for this tenant."""
    with server.client(key=key) as client:
        if limit in ("requests", "tokens"):
            body = {"model": "echo", "prompt": "one two three", "max_tokens": 10}
            client.post("/v1/completions", json=body)  # refused itself if it is so already
        if limit == "concurrency":
            body = {"model": "endless", "prompt": "one two", "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as held:
                pieces = held.iter_bytes()  # kept: to drop it would close the stream
                next(pieces)
                yield
                return
    yield


def stream(client: OpenAI, model: str) -> Stream[ChatCompletionChunk]:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "one two three"}], stream=True
    )
