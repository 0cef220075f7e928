"""The headers that tell a client when to come back, the same in every dialect."""

from __future__ import annotations

import math

from gateway.errors import (
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
        case RateLimited() | Overloaded() | Draining():
            wait_s = max(error.retry_after_s, 0.0)
            headers = (
                ("retry-after", str(math.ceil(wait_s))),
                ("retry-after-ms", str(math.ceil(wait_s * 1000))),
            )
            pointless = (("x-should-retry", "false"),) if isinstance(error, QuotaExhausted) else ()
            return headers + pointless
        case Unauthenticated():
            return (("www-authenticate", "Bearer"),)
        case MethodNotAllowed():
            return (("allow", ", ".join(error.allowed)),)
        case _:
            return ()
