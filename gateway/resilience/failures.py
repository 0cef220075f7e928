"""What kind of failure an attempt ended with, in the words of a policy's `fail_over_on`.

By the error's type, never by its text. Knows no HTTP status: whoever speaks HTTP to an upstream has
made an error of the tree (`backends.errors`) of it.
"""

from __future__ import annotations

from backends.errors import (
    BackendError,
    BackendFailed,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    StreamInterrupted,
)
from gateway.errors import UpstreamTimeout

Failure = BackendError | UpstreamTimeout
"""What another attempt may make good."""

FAILURES = (BackendError, UpstreamTimeout)


def kind_of(failure: Failure, *, has_begun: bool) -> str:
    """One of `FAIL_OVER_ON`; "" for what no other attempt can make good.

    `has_begun` says whether the attempt gave anything of the answer.
    """
    if has_begun:
        return "cut"
    match failure:
        case BackendOverloaded():
            return "429"
        case BackendTimeout() | UpstreamTimeout():
            return "timeout"
        case BackendFailed() | BackendProtocolError() | StreamInterrupted():
            return "5xx"
        case BackendUnavailable():
            return "connect"
        case _:
            return ""


def is_backends_fault(failure: Failure, *, has_begun: bool) -> bool:
    """Whether it speaks against the backend: neither a wrong request nor a full queue does."""
    return kind_of(failure, has_begun=has_begun) not in ("", "429")
