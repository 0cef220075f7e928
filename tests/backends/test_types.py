from __future__ import annotations

import math
from typing import Any

import pytest

from backends.types import GenerationRequest, SamplingParams, TextPrompt


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-0.1, 101.0, math.nan]),
        ("top_k", [-1]),
        ("top_p", [0.0, 1.1, math.nan]),
        ("min_p", [-0.1, 1.1]),
        ("typical_p", [0.0, 1.1]),
        ("repetition_penalty", [0.0, -1.0, 101.0, math.inf, math.nan]),
        ("frequency_penalty", [-2.1, 2.1, math.nan]),
        ("presence_penalty", [-2.1, 2.1]),
        ("logit_bias", [((5, 101.0),), ((5, 1.0), (6, math.nan))]),
        ("bad_words", [("a", "")]),
        ("min_tokens", [-1]),
        ("seed", [-1, 2**64]),
        ("top_logprobs", [-1, 21, 3]),
    ],
)
def test_no_value_an_engine_cannot_handle_can_be_built(name: str, values: list[Any]) -> None:
    """I-SAMPLING-RANGE."""
    for value in values:
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("weight", [0.0, -1.0, math.inf, math.nan]),
        ("timeout_s", [0.0, -1.0, math.nan]),
    ],
)
def test_no_request_without_a_share_or_time_can_be_built(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=name):
            GenerationRequest(
                request_id="r",
                model="m",
                prompts=(TextPrompt(text="a"),),
                sampling=SamplingParams(),
                **{name: value},
            )


def test_no_request_wants_more_tokens_than_may_come() -> None:
    """E-MIN-TOKENS."""
    sampling = SamplingParams(min_tokens=5)
    prompts = (TextPrompt(text="a"),)
    for max_tokens in (5, 6):
        GenerationRequest(
            request_id="r", model="m", prompts=prompts, sampling=sampling, max_tokens=max_tokens
        )
    with pytest.raises(ValueError, match="min_tokens must be at most max_tokens"):
        GenerationRequest(
            request_id="r", model="m", prompts=prompts, sampling=sampling, max_tokens=4
        )
