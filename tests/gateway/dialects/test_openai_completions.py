from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from openai.types import Completion

from backends.types import (
    Event,
    FinishReason,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
)
from gateway.dialects.openai_completions import CompletionExchange, OpenAICompletions
from gateway.errors import InvalidRequest, UnsupportedValue, UpstreamFailed
from tests.gateway.dialects.events import (
    STAMP,
    TIMINGS,
    body,
    data_lines,
    end_of_turn,
    entry,
    finished,
    streamed,
    token,
    told,
)

DIALECT = OpenAICompletions()
HEAD = (
    b'{"id":"cmpl-r1","object":"text_completion","created":1700000000,"model":"m",'
    b'"service_tier":"default","system_fingerprint":"fp_62c66a7a5d","choices":['
)


def exchange(**fields: object) -> CompletionExchange:
    return DIALECT.parse(body(**{"prompt": "hi", **fields}), STAMP)


def request(**fields: object) -> GenerationRequest:
    return exchange(**fields).request


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        exchange(**fields)
    return caught.value


def chunks(stream: bytes) -> list[Any]:
    """The chunks of a whole stream, each checked against openai-python's types.

    Those say that a text completion always has a finish reason; streams have none until the end.
    """
    *payloads, end = data_lines(stream)
    assert end == "[DONE]"
    sent = [json.loads(payload) for payload in payloads]
    for chunk in sent:
        if any(
            (choice["logprobs"] or {}).get("token_logprobs", [])[:1] == [None]
            for choice in chunk["choices"]
        ):
            continue  # a prompt's first token, of which the types do not know
        whole = [{**choice, "finish_reason": "stop"} for choice in chunk["choices"]]
        Completion.model_validate({**chunk, "choices": whole}, strict=True)
    return sent


def test_defaults_are_openai_s() -> None:
    made = request()
    assert made.model == ""
    assert made.max_tokens == 16
    assert made.sampling == SamplingParams(temperature=1.0, seed=STAMP.seed)
    assert made.prompts == (TextPrompt(text="hi"),)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt(text="a"),)),
        ("", (TextPrompt(text=""),)),
        (["a", "b"], (TextPrompt(text="a"), TextPrompt(text="b"))),
        ([1, 2], (TokenPrompt(token_ids=(1, 2)),)),
        ([[1], [2, 3]], (TokenPrompt(token_ids=(1,)), TokenPrompt(token_ids=(2, 3)))),
    ],
)
def test_a_prompt_has_four_forms(prompt: object, prompts: tuple[Prompt, ...]) -> None:
    assert request(prompt=prompt).prompts == prompts


def test_a_cache_salt_is_passed_on() -> None:
    made = request(cache_salt="s")
    assert (made.cache_salt, made.extra) == ("s", {})
    assert request().cache_salt == ""


def test_special_tokens_can_be_left_off() -> None:
    made = request(add_special_tokens=False)
    assert made.prompts == (TextPrompt(text="hi", add_special_tokens=False),)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (5, "prompt"),
        ({"a": 1}, "prompt"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([True], "prompt[0]"),
        ([-1], "prompt[0]"),
        ([2**63], "prompt[0]"),
        ([[1], [1.5]], "prompt[1][0]"),
        (["a"] * 100_000, "prompt"),
        ([None], "prompt[0]"),
    ],
)
def test_names_what_is_wrong_with_a_prompt(prompt: object, param: str) -> None:
    """I-FANOUT, I-EMPTY-PROMPT."""
    error = refusal(prompt=prompt)
    assert error.param == param
    assert "prompt" in error.message


def test_prompts_times_n_is_capped() -> None:
    """I-FANOUT: with 128 choices at most, 64 prompts may have two each."""
    assert request(prompt=["a"] * 64, n=2).num_choices == 128
    assert "at most 1 for 65 prompts" in refusal(prompt=["a"] * 65, n=2).message


@pytest.mark.parametrize(
    ("logprobs", "expected"), [(None, (False, 0)), (0, (True, 0)), (20, (True, 20))]
)
def test_logprobs_is_a_number_of_alternatives(
    logprobs: int | None, expected: tuple[bool, int]
) -> None:
    sampling = request(logprobs=logprobs).sampling
    assert (sampling.logprobs, sampling.top_logprobs) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": 21},
        {"logprobs": True},
        {"suffix": "x"},
        {"stream": True, "best_of": 2},
        {"best_of": 10**6},
        {"best_of": 0},
        {"n": 2, "best_of": 1},
        {"prompt": ["a", "b"], "best_of": 65},
        {"min_tokens": 17},
        {"use_beam_search": True},
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"temperature": 2.1},
        {"prompt_embeds": "x"},
        {"prompt_logprobs": 21},
        {"prompt_logprobs": -1},
        {"stream": True, "prompt_logprobs": 0},
    ],
)
def test_refuses_values_naming_the_parameter(fields: dict[str, object]) -> None:
    """I-MAX-TOKENS-ZERO, G-BEST-OF: before the stream, in one word what to change."""
    *_, param = fields
    assert refusal(**fields).param == param


def test_best_of_as_many_as_choices_asks_for_nothing() -> None:
    assert request(n=3, best_of=3, stream=True) == request(n=3, stream=True)


def test_best_of_gives_the_likeliest_of_each_prompt_best_first_and_counts_all() -> None:
    """G-BEST-OF: two of three for two prompts, by mean log-probability."""
    made = exchange(prompt=["p", "q"], n=2, best_of=3, echo=True)
    assert (made.request.num_choices, made.request.sampling.logprobs) == (6, True)
    means = [-3.0, -1.0, -2.0, -1.0, -2.0, -1.0]
    events: list[Event] = []
    for index, mean in enumerate(means):
        for part in "ab":
            offset = 0.5 if part == "a" else -0.5
            text = f"{index}{part}"
            events.append(token(text, index=index, chosen=entry(text, mean + offset)))
    reasons = [FinishReason.EOS, FinishReason.LENGTH, FinishReason.EOS] * 2
    events.append(finished(*reasons, completion_tokens=12))
    answer = json.loads(made.collect("m", events, TIMINGS).body)
    Completion.model_validate(answer, strict=True)
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["p1a1b", "p2a2b", "q3a3b", "q5a5b"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["finish_reason"] for choice in answer["choices"]] == [
        "length", "stop", "stop", "stop"
    ]  # fmt: skip
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
    assert answer["usage"]["completion_tokens"] == 12


def test_echo_of_token_ids_needs_logprobs() -> None:
    """Their text comes with their log-probabilities."""
    error = refusal(echo=True, prompt=[1, 2])
    assert isinstance(error, UnsupportedValue)
    assert (error.param, "send `logprobs`: 0" in error.message) == ("echo", True)
    assert request(echo=True, prompt=[1, 2], logprobs=0).sampling.prompt_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"echo": True}, None),
        ({"logprobs": 3}, None),
        ({"echo": True, "logprobs": 0}, 0),
        ({"echo": True, "logprobs": 3}, 3),
        ({"prompt_logprobs": 2}, 2),
        ({"prompt_logprobs": 2, "logprobs": 5}, 2),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 5}, 5),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 0}, 3),
    ],
)
def test_the_prompt_is_asked_about_for_whoever_wants_most(
    fields: dict[str, object], asked: int | None
) -> None:
    assert request(**fields).sampling.prompt_logprobs == asked


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}]
)
def test_no_tokens_may_be_asked_for_where_the_prompt_is(fields: dict[str, object]) -> None:
    """I-MAX-TOKENS-ZERO."""
    assert request(max_tokens=0, **fields).max_tokens == 0
    assert refusal(max_tokens=0, min_tokens=1, **fields).param == "min_tokens"


SCORED: dict[str, Any] = {
    "tokens": ["p", "q", "a"],
    "token_logprobs": [None, -1.0, -0.5],
    "top_logprobs": [None, {"x": -0.25, "q": -1.0}, {"a": -0.5}],
    "text_offset": [0, 1, 2],
}


def test_an_echoed_prompt_has_its_logprobs_in_front_of_the_answer_s() -> None:
    """E-PREFIX-PROMPT-LOGPROBS: one entry a token, the first null."""
    made = exchange(echo=True, logprobs=1, prompt="pq")
    events: list[Event] = [told("p", "q"), token("a", chosen=entry("a")), finished()]
    (choice,) = answer(made, events)["choices"]
    assert (choice["text"], choice["logprobs"]) == ("pqa", SCORED)
    assert "prompt_logprobs" not in choice


def test_a_streamed_prompt_comes_with_the_first_chunk() -> None:
    made = exchange(echo=True, logprobs=1, prompt="pq", stream=True)
    events: list[Event] = [
        told("p", "q"), token("a", chosen=entry("a")), token("b", chosen=entry("b")), finished()
    ]  # fmt: skip
    first, second, _ = [chunk["choices"][0] for chunk in chunks(streamed(made.stream("m"), events))]
    assert (first["text"], first["logprobs"]) == ("pqa", SCORED)
    assert (second["text"], second["logprobs"]["text_offset"]) == ("b", [3])


def test_a_token_that_the_tokenizer_adds_is_told_and_takes_no_room() -> None:
    made = exchange(echo=True, logprobs=0, prompt="pq")
    events: list[Event] = [told("pq", added="<s>"), token("a", chosen=entry("a")), finished()]
    (choice,) = answer(made, events)["choices"]
    assert choice["text"] == "pqa"
    assert choice["logprobs"]["tokens"] == ["<s>", "pq", "a"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 2]


def test_echoed_token_ids_have_the_text_of_their_entries() -> None:
    """A character in two tokens is one in the text."""
    made = exchange(echo=True, logprobs=0, prompt=[[1], [2]], n=2)
    pieces = ["é".encode()[:1], "é".encode()[1:]]
    split = told("\ufffd", "\ufffd", prompt=1)
    split = replace(
        split,
        tokens=tuple(
            replace(one, raw=raw, start=0) for one, raw in zip(split.tokens, pieces, strict=True)
        ),
    )
    events: list[Event] = [told("p"), split]
    events += [token(str(index), index=index, chosen=entry(str(index))) for index in range(4)]
    events.append(finished(*[FinishReason.LENGTH] * 4))
    choices = answer(made, events)["choices"]
    assert [choice["text"] for choice in choices] == ["p0", "p1", "é2", "é3"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[0, 1]] * 2 + [
        [0, 0, 1]
    ] * 2
    stream = chunks(streamed(made.stream("m"), events))
    assert [chunk["choices"][0]["text"] for chunk in stream][:4] == ["p0", "p1", "é2", "é3"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_alone(stream: bool) -> None:
    """I-MAX-TOKENS-ZERO."""
    made = exchange(echo=True, logprobs=1, prompt="pq", max_tokens=0, stream=stream)
    events: list[Event] = [told("p", "q"), finished(FinishReason.LENGTH, completion_tokens=0)]
    if stream:
        ((choice,),) = [chunk["choices"] for chunk in chunks(streamed(made.stream("m"), events))]
    else:
        (choice,) = answer(made, events)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("pq", "length")
    assert choice["logprobs"] == {name: column[:2] for name, column in SCORED.items()}


def test_prompt_logprobs_have_vllm_s_shape() -> None:
    made = exchange(prompt=["pq", "r"], n=2, prompt_logprobs=1)
    events: list[Event] = [told("p", "q"), told("r", prompt=1)]
    events += [token("a", index=index) for index in range(4)]
    events.append(finished(*[FinishReason.LENGTH] * 4))
    expected = [
        None,
        {
            "11": {"logprob": -1.0, "rank": 2, "decoded_token": "q"},
            "7": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
        },
    ]
    choices = answer(made, events)["choices"]
    assert [choice["prompt_logprobs"] for choice in choices] == [expected] * 2 + [[None]] * 2
    assert [choice["logprobs"] for choice in choices] == [None] * 4


def test_the_winners_of_best_of_have_their_prompt_in_front() -> None:
    made = exchange(prompt=["pq", "r"], n=1, best_of=2, echo=True, logprobs=0)
    events: list[Event] = [told("p", "q"), told("r", prompt=1)]
    events += [
        token(str(index), index=index, chosen=entry(str(index), -float(index % 3)))
        for index in range(4)
    ]
    events.append(finished(*[FinishReason.LENGTH] * 4))
    choices = answer(made, events)["choices"]
    assert [choice["text"] for choice in choices] == ["pq0", "r3"]
    assert [choice["logprobs"]["tokens"] for choice in choices] == [["p", "q", "0"], ["r", "3"]]


def test_an_upstream_that_tells_nothing_of_the_prompt_leaves_it_out() -> None:
    made = exchange(echo=True, logprobs=0, prompt="pq", prompt_logprobs=0)
    events: list[Event] = [token("a", chosen=entry("a")), finished()]
    (choice,) = answer(made, events)["choices"]
    assert (choice["text"], choice["prompt_logprobs"]) == ("pqa", [])
    assert choice["logprobs"]["text_offset"] == [len("pq")]


def test_echo_puts_the_prompt_in_front_of_every_choice() -> None:
    made = exchange(echo=True, prompt=["p", "q"], n=2)
    events: list[Event] = [token(str(index), index=index) for index in range(4)]
    events.append(finished(*[FinishReason.LENGTH] * 4))
    texts = [choice["text"] for choice in answer(made, events)["choices"]]
    assert texts == ["p0", "p1", "q2", "q3"]
    stream = chunks(streamed(made.stream("m"), events))
    assert [chunk["choices"][0]["text"] for chunk in stream][:4] == texts


def test_an_echoed_prompt_comes_even_without_a_token() -> None:
    stream = streamed(exchange(echo=True).stream("m"), [finished(FinishReason.LENGTH)])
    assert [chunk["choices"][0]["text"] for chunk in chunks(stream)] == ["hi"]


def answer(made: CompletionExchange, events: list[Event]) -> Any:
    """Held against openai-python's types, which know nothing of a first token without logprob."""
    reply = made.collect("m", events, TIMINGS)
    if not made.echo or made.logprobs is None:
        Completion.model_validate_json(reply.body, strict=True)
    return json.loads(reply.body)


def test_golden_stream() -> None:
    events: list[Event] = [token("Hé"), token(""), end_of_turn(), finished()]
    made = exchange(stream=True, stream_options={"include_usage": True})
    assert streamed(made.stream("m"), events) == b"".join(
        [
            b"data: ",
            HEAD,
            '{"index":0,"text":"Hé","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
            "data: ".encode(),
            HEAD,
            b'{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
            b"data: ",
            HEAD,
            b'],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,'
            b'"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},'
            b'"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,'
            b'"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}\n\n'
            b"data: [DONE]\n\n",
        ]
    )


def test_two_prompts_with_two_choices_end_with_one_done() -> None:
    """S-DONE-ONCE."""
    made = exchange(prompt=["a", "b"], n=2, stream=True, stream_options={"include_usage": True})
    events: list[Event] = [
        token("x", index=index, finish=FinishReason.LENGTH) for index in (2, 0, 3, 1)
    ]
    events.append(finished(*[FinishReason.LENGTH] * 4, completion_tokens=4))
    stream = streamed(made.stream("m"), events)
    assert stream.count(b"[DONE]") == 1
    *ends, usage = chunks(stream)
    assert sorted(chunk["choices"][0]["index"] for chunk in ends) == [0, 1, 2, 3]
    assert all(chunk["choices"][0]["finish_reason"] == "length" for chunk in ends)
    assert usage["choices"] == []


def test_a_stream_that_fails_has_an_error_and_no_end() -> None:
    encoder = exchange(stream=True).stream("m")
    stream = encoder.feed(token("a")) + encoder.fail(UpstreamFailed("gone"))
    assert json.loads(data_lines(stream)[-1])["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in stream


def test_logprobs_are_parallel_lists_with_the_chosen_token_in_them() -> None:
    events: list[Event] = [
        token("a", chosen=entry("a"), top=(entry("b", -0.25), entry("c", -0.375))),
        token("é", chosen=entry("é"), top=()),
        end_of_turn(),
        finished(),
    ]
    expected = {
        "tokens": ["a", "é", "<|im_end|>"],
        "token_logprobs": [-0.5, -0.5, -0.125],
        "top_logprobs": [
            {"b": -0.25, "c": -0.375, "a": -0.5},
            {"é": -0.5},
            {"<|im_end|>": -0.125},
        ],
        "text_offset": [0, 1, 2],
    }
    made = exchange(logprobs=2)
    assert answer(made, events)["choices"][0]["logprobs"] == expected
    pieces = [
        chunk["choices"][0]["logprobs"] for chunk in chunks(streamed(made.stream("m"), events))
    ]
    assert {key: [item for piece in pieces for item in piece[key]] for key in expected} == expected


def test_tokens_inside_a_character_have_its_offset() -> None:
    """The pepper is one character in three tokens; the word after it starts at 1."""
    raws = ["🌶".encode()[:2], "🌶".encode()[2:3], "🌶".encode()[3:], b"hot"]
    shown = ["\ufffd", "\ufffd", "\ufffd", "hot"]
    texts = ["", "", "🌶", "hot"]
    events: list[Event] = [
        token(text, chosen=TokenLogprob(token_id=1, text=show, raw=raw, logprob=-1.0))
        for text, show, raw in zip(texts, shown, raws, strict=True)
    ]
    logprobs = answer(exchange(logprobs=0), [*events, finished()])["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 0, 0, 1]


def test_of_two_entries_that_look_alike_the_likelier_is_shown() -> None:
    alike = (entry("\ufffd", -0.25), entry("\ufffd", -3.0))
    events: list[Event] = [token("x", chosen=alike[1], top=alike), finished()]
    logprobs = answer(exchange(logprobs=2), events)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"\ufffd": -0.25}]


def test_an_upstream_without_logprobs_leaves_the_lists_empty() -> None:
    logprobs = answer(exchange(logprobs=2), [token("x"), finished()])["choices"][0]["logprobs"]
    assert logprobs == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
