"""The headers an error carries, the same in every dialect: above all, when to come back."""

from __future__ import annotations

import math

from gateway.errors import (
    Conflict,
    Draining,
    GatewayError,
    MethodNotAllowed,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Unauthenticated,
)

Headers = tuple[tuple[str, str], ...]


def error_headers(error: GatewayError) -> Headers:
    """`retry-after` in whole seconds for everyone, `retry-after-ms` for clients that are finer.

    OpenAI's clients give up at once over 120 s, and on `x-should-retry: false`.
    """
    match error:
        case QuotaExhausted():
            pointless = ("x-should-retry", "false")
            return (*_retry_after(error.retry_after_s), pointless, *error.headers)
        case RateLimited():
            return (*_retry_after(error.retry_after_s), *error.headers)
        case Overloaded() | Draining():
            return _retry_after(error.retry_after_s)
        case Conflict():
            return (("x-should-retry", "false"),)  # OpenAI's clients repeat every 409
        case Unauthenticated():
            return (("www-authenticate", "Bearer"),)
        case MethodNotAllowed():
            return (("allow", ", ".join(error.allowed)),)
        case _:
            return ()


def _retry_after(wait_s: float) -> Headers:
    return (
        ("retry-after", str(math.ceil(wait_s))),
        ("retry-after-ms", str(math.ceil(wait_s * 1000))),
    )
