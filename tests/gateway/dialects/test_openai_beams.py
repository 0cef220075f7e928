"""vLLM's `use_beam_search`, in both of OpenAI's dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.types import BeamParams, GenerationRequest
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.errors import InvalidRequest
from tests.gateway.dialects.events import STAMP

DIALECTS = ("chat", "completions")


def parse(dialect: str, **fields: Any) -> GenerationRequest:
    if dialect == "chat":
        chat = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
        return OpenAIChat().parse(json.dumps(chat).encode(), STAMP).request
    body = {"model": "m", "prompt": "a", **fields}
    return OpenAICompletions().parse(json.dumps(body).encode(), STAMP).request


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_is_searched_unless_asked_for(dialect: str) -> None:
    assert parse(dialect).beams is None
    assert parse(dialect, use_beam_search=False, length_penalty=1.0).beams is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_as_many_beams_as_choices(dialect: str) -> None:
    request = parse(dialect, use_beam_search=True, n=3, length_penalty=0.5, temperature=0)
    assert request.beams == BeamParams(width=3, length_penalty=0.5)
    assert request.n == 3


def test_best_of_is_the_width() -> None:
    request = parse("completions", use_beam_search=True, n=2, best_of=5)
    assert request.beams == BeamParams(width=5)
    assert request.n == 2
    assert not request.sampling.logprobs


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("top_p", 0.9),
        ("top_k", 3),
        ("min_p", 0.1),
        ("typical_p", 0.9),
        ("repetition_penalty", 1.1),
        ("frequency_penalty", 0.5),
        ("presence_penalty", 0.5),
        ("logit_bias", {"5": 1}),
        ("allowed_token_ids", [5]),
        ("bad_words", ["a"]),
        ("stop", ["a"]),
        ("prompt_logprobs", 0),
        ("stream", True),
    ],
)
def test_refuses_what_is_about_drawing_or_streams(dialect: str, name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(dialect, use_beam_search=True, **{name: value})
    assert refusal.value.param == name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_accepts_fields_that_say_what_holds_anyway(dialect: str) -> None:
    neutral = {"temperature": 1, "top_p": 1, "top_k": -1, "logit_bias": {}, "stream": False}
    assert parse(dialect, use_beam_search=True, **neutral).beams is not None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_length_penalty_needs_beams(dialect: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(dialect, length_penalty=0.5)
    assert refusal.value.param == "length_penalty"


@pytest.mark.parametrize(
    "fields", [{"echo": True}, {"max_tokens": 0}, {"echo": True, "max_tokens": 0}]
)
def test_beams_need_tokens_and_no_echo(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        parse("completions", use_beam_search=True, **fields)
