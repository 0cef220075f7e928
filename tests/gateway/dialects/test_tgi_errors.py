from __future__ import annotations

import json

import pytest
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError
from huggingface_hub.inference._common import _format_text_generation_stream_output

from gateway.dialects.tgi_errors import tgi_error_event, tgi_error_reply
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
    UpstreamFailed,
    UpstreamTimeout,
)

FAILED = "Request failed during generation: m"


@pytest.mark.parametrize(
    ("error", "status", "text", "word"),
    [
        (InvalidRequest("m", param="n"), 422, "Input validation error: m", "validation"),
        (MalformedBody("m"), 400, "m", "validation"),
        (UnsupportedMediaType("m"), 415, "m", "validation"),
        (BodyTooLarge("m"), 413, "m", "validation"),
        (Unauthenticated("m"), 401, "m", "authentication"),
        (Forbidden("m"), 403, "m", "forbidden"),
        (RouteNotFound("m"), 404, "m", "not_found"),
        (ModelNotFound("x"), 404, ModelNotFound("x").message, "not_found"),
        (MethodNotAllowed("m", allowed=("GET",)), 405, "m", "method_not_allowed"),
        (
            RateLimited("m", retry_after_s=1.0, dimension="requests", limit="l"),
            429,
            "m",
            "overloaded",
        ),
        (
            QuotaExhausted("m", retry_after_s=9000.0, dimension="tokens", limit="l"),
            429,
            "m",
            "quota_exhausted",
        ),
        (Overloaded("m"), 429, "Model is overloaded", "overloaded"),
        (Draining("m"), 503, "m", "overloaded"),
        (UpstreamFailed("m"), 424, FAILED, "generation"),
        (UpstreamTimeout("m"), 504, FAILED, "generation"),
        (
            InternalError(),
            500,
            f"Request failed during generation: {InternalError().message}",
            "generation",
        ),
    ],
)
def test_status_text_and_word(error: GatewayError, status: int, text: str, word: str) -> None:
    reply = tgi_error_reply(error)
    assert reply.status == status
    assert json.loads(reply.body) == {"error": text, "error_type": word}


def test_too_many_tokens_in_total_are_told_in_tgi_s_words() -> None:
    error = ContextLengthExceeded(prompt_tokens=1, max_tokens=10000, max_total_tokens=8192)
    assert json.loads(tgi_error_reply(error).body)["error"] == (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. "
        "Given: 1 `inputs` tokens and 10000 `max_new_tokens`"
    )


def test_a_prompt_too_long_by_itself_is_told_in_tgi_s_words() -> None:
    error = ContextLengthExceeded(prompt_tokens=9000, max_tokens=0, max_total_tokens=8192)
    assert json.loads(tgi_error_reply(error).body)["error"] == (
        "Input validation error: `inputs` must have less than 8191 tokens. Given: 9000"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("m", param="n"), ValidationError),
        (Overloaded("m"), OverloadedError),
        (UpstreamFailed("m"), GenerationError),
    ],
)
def test_huggingface_hub_raises_its_typed_error_in_a_stream(
    error: GatewayError, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        _format_text_generation_stream_output(tgi_error_event(error).decode().strip(), True)
