"""The shared wire cases that a dialect decides alone, without a server or a backend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.types import Event, FinishReason
from gateway.dialects.base import Dialect, Exchange, Reply
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.tgi import Tgi, TgiRoute
from gateway.errors import GatewayError
from tests.cases.wire import WireCase, failed_checks, load_wire_cases, stream_document
from tests.gateway.dialects.events import STAMP, TIMINGS, end_of_turn, entry, finished, token

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/completions": OpenAICompletions(),
    "/generate": Tgi(TgiRoute.GENERATE),
    "/generate_stream": Tgi(TgiRoute.GENERATE_STREAM),
    "/": Tgi(TgiRoute.ROOT),
}
CASES = [case for case in load_wire_cases("m") if case.decided_by == "dialect"]


def answer_of(exchange: Exchange) -> Reply:
    """What comes out when each choice says "Hi" and ends its turn."""
    choices = range(exchange.request.num_choices)
    events: list[Event] = [token("Hi", index=index, chosen=entry("Hi")) for index in choices]
    events += [end_of_turn(index) for index in choices]
    events.append(finished(*(FinishReason.EOS for _ in choices), completion_tokens=2))
    if not exchange.request.stream:
        return exchange.collect("m", events, TIMINGS)
    encoder = exchange.stream("m")
    body = b"".join(encoder.feed(event) for event in events)
    return Reply(body=body, media_type="text/event-stream")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_wire_case_that_the_dialect_decides(case: WireCase) -> None:
    dialect = DIALECTS[case.path]
    try:
        reply = answer_of(dialect.parse(case.body, STAMP))
    except GatewayError as error:
        reply = dialect.error(error)
    document: Any = (
        stream_document(reply.body)
        if reply.media_type == "text/event-stream"
        else json.loads(reply.body)
    )
    headers = {**dict(reply.headers), "content-type": reply.media_type}
    assert reply.status in case.statuses, document
    assert failed_checks(case, headers, document) == []


def test_case_ids_are_unique() -> None:
    ids = [case.id for case in load_wire_cases("m")]
    assert len(ids) == len(set(ids))
