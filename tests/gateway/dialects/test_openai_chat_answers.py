"""Chat completions on the wire: streams to the byte, whole answers, and what clients read."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from huggingface_hub.inference._common import _stream_chat_completion_response
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from backends.types import (
    Event,
    FinishReason,
)
from gateway.dialects.openai_chat import ChatExchange, OpenAIChat
from gateway.errors import UpstreamFailed
from tests.gateway.dialects.events import (
    STAMP,
    TIMINGS,
    chat_body,
    data_lines,
    end_of_turn,
    entry,
    finished,
    streamed,
    token,
)

DIALECT = OpenAIChat()
HEAD = (
    b'{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"service_tier":"default","system_fingerprint":"fp_62c66a7a5d","choices":['
)


def exchange(**fields: object) -> ChatExchange:
    return DIALECT.parse(chat_body(**fields), STAMP)


def chunks(stream: bytes) -> list[Any]:
    """The chunks of a whole stream, each checked against openai-python's strict types."""
    *payloads, end = data_lines(stream)
    assert end == "[DONE]"
    for payload in payloads:
        ChatCompletionChunk.model_validate_json(payload, strict=True)
    return [json.loads(payload) for payload in payloads]


def test_golden_stream() -> None:
    events: list[Event] = [token("Hé"), token(""), token('"\n'), end_of_turn(), finished()]
    assert streamed(exchange(stream=True).stream("m"), events) == b"".join(
        [
            b"data: ",
            HEAD,
            b'{"index":0,"delta":{"role":"assistant","content":"","refusal":null},'
            b'"logprobs":null,"finish_reason":null}]}\n\ndata: ',
            HEAD,
            '{"index":0,"delta":{"content":"Hé"},"logprobs":null,"finish_reason":null}]}\n\n'
            "data: ".encode(),
            HEAD,
            b'{"index":0,"delta":{"content":"\\"\\n"},"logprobs":null,"finish_reason":null}]}\n\n'
            b"data: ",
            HEAD,
            b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n',
            b"data: [DONE]\n\n",
        ]
    )


def test_golden_usage_chunk_comes_last_and_the_others_say_null() -> None:
    """S-USAGE-OPT-IN."""
    made = exchange(stream=True, stream_options={"include_usage": True})
    stream = streamed(made.stream("m"), [token("a"), end_of_turn(), finished(cached_tokens=1)])
    *others, usage, end = stream.split(b"\n\n")[:-1]
    assert end == b"data: [DONE]"
    assert len(others) == 3
    assert all(chunk.endswith(b'}],"usage":null}') for chunk in others)
    assert usage == b"data: " + HEAD + (
        b'],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":1,"audio_tokens":0},'
        b'"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,'
        b'"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
    )


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_no_usage_unless_asked_for(options: object) -> None:
    """S-USAGE-OPT-IN."""
    made = exchange(stream=True, stream_options=options)
    stream = streamed(made.stream("m"), [token("a"), end_of_turn(), finished()])
    assert all("usage" not in chunk for chunk in chunks(stream))


def test_accepts_running_usage_and_reports_it_at_the_end() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = streamed(exchange(stream_options=options).stream("m"), [end_of_turn(), finished()])
    assert chunks(stream)[-1]["usage"]["total_tokens"] == 5


def test_the_stream_is_one_object_with_a_delta_in_every_choice() -> None:
    """S-DELTA-ALWAYS, S-STOP-EMPTY-DELTAS."""
    events: list[Event] = [token("a"), token(""), token("b"), end_of_turn(), finished()]
    sent = chunks(streamed(exchange(stream=True).stream("m"), events))
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in sent}) == 1
    deltas = [choice["delta"] for chunk in sent for choice in chunk["choices"]]
    assert [delta.get("content") for delta in deltas] == ["", "a", "b", None]


def test_several_choices_interleave_and_end_once() -> None:
    """S-DONE-ONCE."""
    events: list[Event] = [
        token("a", index=1),
        token("b", index=0),
        token("c", index=1, finish=FinishReason.LENGTH),
        token("", index=0, finish=FinishReason.STOP),
        finished(FinishReason.STOP, FinishReason.LENGTH, completion_tokens=4),
    ]
    stream = streamed(exchange(n=2, stream=True).stream("m"), events)
    assert stream.count(b"[DONE]") == 1
    sent = [choice for chunk in chunks(stream) for choice in chunk["choices"]]
    assert [choice["index"] for choice in sent] == [0, 1, 1, 0, 1, 1, 0]
    assert [(c["index"], c["finish_reason"]) for c in sent if c["finish_reason"]] == [
        (1, "length"),
        (0, "stop"),
    ]


def test_a_choice_without_a_token_still_ends() -> None:
    stream = streamed(exchange().stream("m"), [finished(FinishReason.LENGTH)])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(stream)] == [None, "length"]


def test_logprobs_of_tokens_without_text_come_with_the_next_text() -> None:
    events: list[Event] = [
        token("", chosen=entry("h"), top=(entry("h"), entry("j", -2.0))),
        token("hi", chosen=entry("i", -0.25)),
        end_of_turn(),
        finished(),
    ]
    made = exchange(logprobs=True, top_logprobs=2, stream=True)
    sent = chunks(streamed(made.stream("m"), events))
    items = [chunk["choices"][0]["logprobs"] for chunk in sent]
    assert [item and [one["token"] for one in item["content"]] for item in items] == [
        None,
        ["h", "i"],
        ["<|im_end|>"],
        None,
    ]
    assert items[1]["content"][0] == {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "h", "logprob": -0.5, "bytes": [104]},
            {"token": "j", "logprob": -2.0, "bytes": [106]},
        ],
    }


def test_minus_infinity_is_a_number_json_has() -> None:
    events: list[Event] = [token("a", chosen=entry("a", float("-inf"))), end_of_turn(), finished()]
    sent = chunks(streamed(exchange(logprobs=True).stream("m"), events))
    assert sent[1]["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_a_stream_that_fails_has_an_error_and_no_end() -> None:
    encoder = exchange(stream=True).stream("m")
    stream = encoder.feed(token("a")) + encoder.fail(UpstreamFailed("gone"))
    last = json.loads(data_lines(stream)[-1])
    assert last["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in stream


def test_openai_python_reads_the_stream_and_raises_its_error() -> None:
    encoder = exchange(stream=True).stream("m")
    stream = streamed(encoder, [token("a"), token("b")]) + encoder.fail(UpstreamFailed("gone"))
    response = httpx2.Response(
        200, content=stream, headers={"content-type": "text/event-stream; charset=utf-8"}
    )
    with (
        httpx2.Client(transport=httpx2.MockTransport(lambda _: response)) as http_client,
        openai.OpenAI(api_key="k", http_client=http_client, max_retries=0) as client,
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        ) as chunk_stream,
    ):
        texts = [next(chunk_stream).choices[0].delta.content for _ in range(3)]
        with pytest.raises(openai.APIError, match="gone"):
            next(chunk_stream)
    assert texts == ["", "a", "b"]


def test_huggingface_hub_reads_the_stream() -> None:
    events: list[Event] = [token("a"), token("b"), end_of_turn(), finished()]
    stream = streamed(exchange(stream=True).stream("m"), events).decode()
    outputs = list(_stream_chat_completion_response(stream.split("\n")))
    assert "".join(output.choices[0].delta.content or "" for output in outputs) == "ab"
    assert outputs[-1].choices[0].finish_reason == "stop"


def test_golden_whole_answer() -> None:
    events: list[Event] = [token("a"), token("b"), end_of_turn(), finished()]
    reply = exchange().collect("m", events, TIMINGS)
    ChatCompletion.model_validate_json(reply.body, strict=True)
    assert reply.body == (
        b'{"id":"chatcmpl-r1","object":"chat.completion","created":1700000000,"model":"m",'
        b'"service_tier":"default","system_fingerprint":"fp_62c66a7a5d","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"ab","refusal":null,"annotations":[]},'
        b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,'
        b'"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0,'
        b'"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,'
        b'"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
    )


def test_a_whole_answer_reports_every_token_s_logprob() -> None:
    events: list[Event] = [
        token("", chosen=entry("h")),
        token("hi", chosen=entry("i")),
        end_of_turn(),
    ]
    reply = exchange(logprobs=True).collect("m", [*events, finished()], TIMINGS)
    ChatCompletion.model_validate_json(reply.body, strict=True)
    logprobs = json.loads(reply.body)["choices"][0]["logprobs"]
    assert [item["token"] for item in logprobs["content"]] == ["h", "i", "<|im_end|>"]
    assert [item["top_logprobs"] for item in logprobs["content"]] == [[], [], []]
