"""Errors as the OpenAI API spells them: an object with all of message, type, param and code.

A sibling `error_type` in TGI's words is for clients of Hugging Face's, which read it beside an
object as well as beside a text. `code` is a string or null, never a number: openai-python's type.
"""

from __future__ import annotations

import orjson

from gateway.dialects.base import Reply
from gateway.dialects.retry import error_headers
from gateway.dialects.sse import frame
from gateway.dialects.tgi_errors import error_type
from gateway.errors import (
    Conflict,
    GatewayError,
    InvalidRequest,
    QuotaExhausted,
    RateLimited,
    Unauthenticated,
)


def openai_error_reply(error: GatewayError) -> Reply:
    """An error before the first byte."""
    return Reply(body=_body(error), status=error.status, headers=error_headers(error))


def openai_error_event(error: GatewayError) -> bytes:
    """An error in a stream. No [DONE] may follow: a cut answer must not look like a whole one."""
    return frame(_body(error))


def _body(error: GatewayError) -> bytes:
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": _type(error),
                "param": error.param,
                "code": _code(error),
            },
            "error_type": error_type(error),
        }
    )


def _type(error: GatewayError) -> str:
    if isinstance(error, RateLimited) and not isinstance(error, QuotaExhausted):
        return "tokens" if error.dimension.endswith("tokens") else "requests"
    return error.type


def _code(error: GatewayError) -> str | None:
    if isinstance(error, InvalidRequest | Conflict):
        return error.detail_code
    if isinstance(error, Unauthenticated) and error.missing:
        return None
    return error.code
