"""What every dialect promises, whatever its wire format: the same tests for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from backends.types import (
    Event,
    Finished,
    FinishReason,
    Token,
    TokenLogprob,
    Usage,
)
from gateway.dialects.base import Dialect, Exchange, Reply, Stamp, Timings
from gateway.dialects.openai_chat import ChatBody, OpenAIChat
from gateway.dialects.openai_completion_fields import CompletionBody
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.openai_fields import UNBUILT
from gateway.dialects.tgi import Tgi, TgiRoute
from gateway.dialects.tgi_fields import GenerateBody, Parameters
from gateway.errors import (
    BodyTooLarge,
    ContextLengthExceeded,
    Draining,
    Forbidden,
    GatewayError,
    InternalError,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RouteNotFound,
    Unauthenticated,
    UnsupportedMediaType,
    UnsupportedValue,
    UpstreamFailed,
    UpstreamTimeout,
)

STAMP = Stamp(request_id="r1", created_s=1700000000, seed=2**64 - 1)
TIMINGS = Timings(total_s=1.0, validation_s=0.0, queue_s=0.0, inference_s=1.0)

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A dialect with a body it accepts, and how to read its answers."""

    dialect: Dialect
    body: Body
    text_of: Callable[[Any], str]  # of the first choice of a whole answer
    piece_of: Callable[[Any], str]  # of one stream event

    def parse(self, **fields: object) -> Exchange:
        return self.dialect.parse(json.dumps(self.body | fields).encode(), STAMP)


def _chat_piece(event: Any) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _completion_piece(event: Any) -> str:
    return "".join(choice["text"] for choice in event["choices"])


def _tgi_piece(event: Any) -> str:
    return "" if event["token"]["special"] else str(event["token"]["text"])


SUBJECTS = {
    "chat": Subject(
        dialect=OpenAIChat(),
        body={"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        text_of=lambda answer: str(answer["choices"][0]["message"]["content"]),
        piece_of=_chat_piece,
    ),
    "completions": Subject(
        dialect=OpenAICompletions(),
        body={"model": "m", "prompt": "hi"},
        text_of=lambda answer: str(answer["choices"][0]["text"]),
        piece_of=_completion_piece,
    ),
    "generate": Subject(
        dialect=Tgi(TgiRoute.GENERATE),
        body={"inputs": "hi", "parameters": {"details": True}},
        text_of=lambda answer: str(answer["generated_text"]),
        piece_of=_tgi_piece,
    ),
    "generate_stream": Subject(
        dialect=Tgi(TgiRoute.GENERATE_STREAM),
        body={"inputs": "hi", "parameters": {"details": True}},
        text_of=lambda answer: str(answer["generated_text"]),
        piece_of=_tgi_piece,
    ),
    "root": Subject(
        dialect=Tgi(TgiRoute.ROOT),
        body={"inputs": "hi", "parameters": {"return_full_text": False, "details": True}},
        text_of=lambda answer: str(answer[0]["generated_text"]),
        piece_of=_tgi_piece,
    ),
}
ERRORS: list[GatewayError] = [
    InvalidRequest("m", param="p"),
    MalformedBody("m"),
    UnsupportedMediaType("m"),
    BodyTooLarge("m"),
    UnsupportedValue("m", param="p"),
    ContextLengthExceeded(prompt_tokens=9, max_tokens=0, max_total_tokens=8),
    Unauthenticated("m"),
    Forbidden("m"),
    ModelNotFound("m"),
    RouteNotFound("m"),
    MethodNotAllowed("m", allowed=("GET",)),
    RateLimited("m", retry_after_s=1.5, dimension="tokens", limit="l"),
    QuotaExhausted("m", retry_after_s=4000.0, dimension="tokens", limit="l"),
    Overloaded("m"),
    Draining("m"),
    UpstreamFailed("m"),
    UpstreamTimeout("m"),
    InternalError(),
]
every_dialect = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())


texts = st.text(max_size=8)  # Hypothesis' texts have no surrogates, as no token's text has


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """The events of one choice, as the protocol of backends allows them."""
    pieces = draw(st.lists(st.tuples(texts, st.booleans()), max_size=12))
    reason = draw(st.sampled_from(FinishReason))
    last = -1 if reason is FinishReason.DEADLINE else len(pieces) - 1  # the one that ends it
    events: list[Event] = []
    for position, (text, is_special) in enumerate(pieces):
        chosen = TokenLogprob(
            token_id=position, text=f"t{position}", raw=text.encode(), logprob=-float(position)
        )
        events.append(
            Token(
                index=0,
                text="" if is_special else text,
                token_id=position,
                special=is_special,
                logprob=chosen,
                top_logprobs=(chosen,),
                finish_reason=reason if position == last else None,
            )
        )
    tails: tuple[str, ...] = ()
    if reason is FinishReason.DEADLINE:
        tails = (draw(texts) if pieces else "",)
    usage = Usage(prompt_tokens=3, completion_tokens=len(pieces))
    return [*events, Finished(reasons=(reason,), usage=usage, tails=tails)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


field_names = st.sampled_from(
    sorted(
        {
            *ChatBody.model_fields,
            *CompletionBody.model_fields,
            *GenerateBody.model_fields,
            *Parameters.model_fields,
            *UNBUILT,
        }
    )
)
fields = st.dictionaries(field_names, json_values, max_size=4)
# Machines are busy now and then; how long a draw takes says nothing of a dialect.
at_any_speed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def answer(subject: Subject, body: bytes) -> Reply:
    """The whole way of a request whose choices all stay empty."""
    try:
        exchange = subject.dialect.parse(body, STAMP)
    except GatewayError as error:
        return subject.dialect.error(error)
    reasons = (FinishReason.LENGTH,) * exchange.request.num_choices
    usage = Usage(prompt_tokens=1, completion_tokens=0)
    return exchange.collect("m", [Finished(reasons=reasons, usage=usage)], TIMINGS)


@every_dialect
def test_a_request_carries_the_stamp(subject: Subject) -> None:
    request = subject.parse().request
    assert request.request_id == STAMP.request_id
    assert request.sampling.seed == STAMP.seed


@every_dialect
@given(body=st.binary(max_size=40))
@at_any_speed
def test_arbitrary_bytes_raise_nothing_but_gateway_errors(subject: Subject, body: bytes) -> None:
    with pytest.raises(MalformedBody):
        subject.dialect.parse(b"\xff" + body, STAMP)
    with pytest.raises(GatewayError):
        subject.dialect.parse(body, STAMP)


@every_dialect
@given(given=fields, parameters=fields)
@at_any_speed
def test_arbitrary_fields_raise_nothing_but_gateway_errors(
    subject: Subject, given: Body, parameters: Body
) -> None:
    document = subject.body | given
    if "parameters" in subject.body:
        document |= {"parameters": parameters}
    reply = answer(subject, json.dumps(document).encode())
    assert reply.status in {200, 400, 422}
    assert json.loads(reply.body)


@every_dialect
@given(events=answers())
@at_any_speed
def test_the_stream_adds_up_to_the_whole_answer(subject: Subject, events: list[Event]) -> None:
    """S-STOP-EMPTY-DELTAS, S-DONE-ONCE: nothing lost, nothing twice, whatever the pieces."""
    exchange = subject.parse()
    encoder = exchange.stream("m")
    stream = b"".join(encoder.feed(event) for event in events)
    payloads = [line[6:] for line in stream.decode().split("\n\n") if line]
    pieces = [json.loads(payload) for payload in payloads if payload != "[DONE]"]
    whole = json.loads(exchange.collect("m", events, TIMINGS).body)
    assert "".join(map(subject.piece_of, pieces)) == subject.text_of(whole)
    assert stream.endswith(b"\n\n")


@every_dialect
def test_an_answer_cut_by_its_deadline_ends_like_one_that_is_long_enough(subject: Subject) -> None:
    """With all its text, that held back included; once, whole or streamed."""
    end = Finished(
        reasons=(FinishReason.DEADLINE,),
        usage=Usage(prompt_tokens=3, completion_tokens=1),
        tails=(" held",),
    )
    logprob = TokenLogprob(token_id=1, text="said", raw=b"said", logprob=-0.5)
    events: list[Event] = [Token(index=0, text="said", token_id=1, logprob=logprob), end]
    exchange = subject.parse()
    whole = exchange.collect("m", events, TIMINGS).body.decode()
    encoder = exchange.stream("m")
    stream = b"".join(encoder.feed(event) for event in events).decode()
    assert subject.text_of(json.loads(whole)) == "said held"
    assert whole.count('"finish_reason":"length"') == 1
    assert stream.count('"finish_reason":"length"') == 1


@every_dialect
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_has_a_reply_and_an_event(subject: Subject, error: GatewayError) -> None:
    reply = subject.dialect.error(error)
    event = subject.parse().stream("m").fail(error)
    assert 400 <= reply.status <= 504
    assert reply.media_type == "application/json"
    assert event == b"data: " + reply.body + b"\n\n"
    assert json.loads(reply.body)["error_type"]


@every_dialect
def test_what_may_be_retried_says_when(subject: Subject) -> None:
    headers = dict(subject.dialect.error(Overloaded("m", retry_after_s=1.25)).headers)
    assert headers == {"retry-after": "2", "retry-after-ms": "1250"}


@every_dialect
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"a"',
        b"{} {}",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b'{"a": 1e400}',
        b'{"a": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"a": "\xff"}',
        b'{"a": 1, "\\u0061": 2}',
        b"[" * 20000 + b"]" * 20000,
        b'{"a":' * 100 + b"1" + b"}" * 100,
    ],
)
def test_refuses_a_body_that_is_not_one_json_object(subject: Subject, body: bytes) -> None:
    """I-CONTENT-TYPE, I-SURROGATE, I-DEEP-JSON, I-DUP-KEYS."""
    with pytest.raises(MalformedBody) as caught:
        subject.dialect.parse(body, STAMP)
    reply = subject.dialect.error(caught.value)
    assert reply.status == 400
    assert reply.body.decode()


@every_dialect
def test_unknown_fields_are_passed_on_and_nulls_are_not(subject: Subject) -> None:
    request = subject.parse(num_ctx=4096, foo=None).request
    assert request.extra == {"num_ctx": 4096}
