from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from huggingface_hub.errors import OverloadedError, ValidationError
from huggingface_hub.inference._common import _format_chat_completion_stream_output

from gateway.dialects.openai_errors import openai_error_event, openai_error_reply
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    MalformedBody,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Unauthenticated,
    UpstreamFailed,
)


def error_object(error: GatewayError) -> dict[str, Any]:
    document = json.loads(openai_error_reply(error).body)["error"]
    assert isinstance(document, dict)
    return document


def limited(kind: type[RateLimited], dimension: str) -> RateLimited:
    return kind("m", retry_after_s=1.0, dimension=dimension, limit="l")


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidRequest("m", param="n", code="c"), 400, "invalid_request_error", "n", "c"),
        (MalformedBody("m"), 400, "invalid_request_error", None, None),
        (Unauthenticated("m"), 401, "invalid_request_error", None, "invalid_api_key"),
        (Unauthenticated("m", missing=True), 401, "invalid_request_error", None, None),
        (ModelNotFound("x"), 404, "invalid_request_error", "model", "model_not_found"),
        (limited(RateLimited, "requests"), 429, "requests", None, "rate_limit_exceeded"),
        (limited(RateLimited, "tokens"), 429, "tokens", None, "rate_limit_exceeded"),
        (limited(RateLimited, "concurrency"), 429, "requests", None, "rate_limit_exceeded"),
        (
            limited(QuotaExhausted, "tokens"),
            429,
            "insufficient_quota",
            None,
            "insufficient_quota",
        ),
        (Overloaded("m"), 503, "service_unavailable_error", None, "server_is_overloaded"),
        (UpstreamFailed("m"), 502, "server_error", None, "upstream_error"),
        (InternalError(), 500, "server_error", None, None),
    ],
)
def test_status_type_param_and_code(
    error: GatewayError, status: int, kind: str, param: str | None, code: str | None
) -> None:
    assert openai_error_reply(error).status == status
    assert error_object(error) == {
        "message": error.message,
        "type": kind,
        "param": param,
        "code": code,
    }


def test_a_prompt_too_long_is_worded_as_clients_match_it() -> None:
    error = ContextLengthExceeded(prompt_tokens=9000, max_tokens=0, max_total_tokens=8192)
    document = error_object(error)
    assert document["code"] == "context_length_exceeded"
    assert document["message"].startswith("This model's maximum context length is 8192 tokens.")


def sdk_error(error: GatewayError) -> openai.APIStatusError:
    """What openai-python makes of the reply."""
    reply = openai_error_reply(error)
    response = httpx2.Response(reply.status, content=reply.body, headers=list(reply.headers))
    transport = httpx2.MockTransport(lambda _: response)
    with (
        httpx2.Client(transport=transport) as http_client,
        openai.OpenAI(api_key="k", http_client=http_client, max_retries=0) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        client.models.list()
    return caught.value


def test_openai_python_raises_its_own_classes_and_reads_the_code() -> None:
    assert isinstance(sdk_error(InvalidRequest("m", param="n")), openai.BadRequestError)
    assert isinstance(sdk_error(Unauthenticated("m")), openai.AuthenticationError)
    assert isinstance(sdk_error(ModelNotFound("x")), openai.NotFoundError)
    assert isinstance(sdk_error(Overloaded("m")), openai.InternalServerError)
    quota = sdk_error(limited(QuotaExhausted, "tokens"))
    assert isinstance(quota, openai.RateLimitError)
    assert quota.code == "insufficient_quota"


@pytest.mark.parametrize(
    ("error", "expected"),
    [(InvalidRequest("m", param="n"), ValidationError), (Overloaded("m"), OverloadedError)],
)
def test_huggingface_hub_raises_its_typed_error_in_a_stream(
    error: GatewayError, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        _format_chat_completion_stream_output(openai_error_event(error).decode().strip())
