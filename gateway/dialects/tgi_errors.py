"""Errors as text-generation-inference spells them: `{"error": text, "error_type": word}`.

The clients `text_generation` and `huggingface_hub` raise typed exceptions by `error_type`, whatever
the status; the OpenAI routes therefore carry the word as well. Words that TGI itself does not have
(`authentication`, `not_found`, ...) leave those clients to their reading of the status.
"""

from __future__ import annotations

import orjson

from gateway.dialects.base import Reply
from gateway.dialects.retry import error_headers
from gateway.dialects.sse import frame
from gateway.errors import (
    BodyTooLarge,
    Conflict,
    ContextLengthExceeded,
    Draining,
    Forbidden,
    GatewayError,
    InvalidRequest,
    KeyNotFound,
    MalformedBody,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RouteNotFound,
    TenantNotFound,
    Unauthenticated,
    UnsupportedMediaType,
    UpstreamFailed,
)


def error_type(error: GatewayError) -> str:
    """The word clients of Hugging Face's classify by."""
    match error:
        case InvalidRequest():
            return "validation"
        case Unauthenticated():
            return "authentication"
        case Forbidden():
            return "forbidden"
        case ModelNotFound() | TenantNotFound() | KeyNotFound() | RouteNotFound():
            return "not_found"
        case Conflict():
            return "conflict"
        case MethodNotAllowed():
            return "method_not_allowed"
        case QuotaExhausted():
            return "quota_exhausted"
        case RateLimited() | Overloaded() | Draining():
            return "overloaded"
        case _:
            return "generation"


def tgi_error_reply(error: GatewayError) -> Reply:
    """An error before the first byte."""
    return Reply(body=_body(error), status=_status(error), headers=error_headers(error))


def tgi_error_event(error: GatewayError) -> bytes:
    """An error in a stream."""
    return frame(_body(error))


def _body(error: GatewayError) -> bytes:
    return orjson.dumps({"error": _text(error), "error_type": error_type(error)})


def _status(error: GatewayError) -> int:
    match error:
        case MalformedBody() | UnsupportedMediaType() | BodyTooLarge():
            return error.status
        case InvalidRequest():
            return 422
        case Overloaded():
            return 429
        case UpstreamFailed():
            return 424
        case _:
            return error.status


def _text(error: GatewayError) -> str:
    match error:
        case MalformedBody() | UnsupportedMediaType() | BodyTooLarge():
            return error.message
        case ContextLengthExceeded():
            return f"Input validation error: {_length_text(error)}"
        case InvalidRequest():
            return f"Input validation error: {error.message}"
        case Overloaded():
            return "Model is overloaded"
        case _ if error_type(error) == "generation":
            return f"Request failed during generation: {error.message}"
        case _:
            return error.message


def _length_text(error: ContextLengthExceeded) -> str:
    """TGI checks the total first, then the input alone, which leaves room for one token."""
    total = error.max_total_tokens
    if error.max_tokens:
        return (
            f"`inputs` tokens + `max_new_tokens` must be <= {total}. Given: "
            f"{error.prompt_tokens} `inputs` tokens and {error.max_tokens} `max_new_tokens`"
        )
    return f"`inputs` must have less than {total - 1} tokens. Given: {error.prompt_tokens}"
