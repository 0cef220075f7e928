"""What is kept of a finished request for every metric. Knows no metric."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dialects.base import Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request, however it ended. Times in seconds."""

    endpoint: str
    backend: str  # the last that was tried; "" if none was
    tenant: str
    model: str
    status: int
    outcome: str  # complete | rejected | client_disconnect | error | drained
    timings: Timings
    first_token_s: float | None  # None: no token came
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
