"""What one request used and cost, as it is billed. Knows no database and no HTTP."""

from __future__ import annotations

from dataclasses import dataclass

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """One finished request whose key was good, however it ended.

    The tokens are those its lease was settled with: none until a backend gave something, then the
    prompt and every token that came. `docs/usage.md` says how to bill from them.
    """

    request_id: str
    time_s: float  # Unix time of the request's end, from which day it is billed to
    tenant_id: str
    tenant: str  # its name then
    key_id: str
    plan: str
    model: str  # the public name; "" if the request was refused before it was known
    backend: str  # the last that was tried, which answered if there are tokens; "" if none was
    route: str
    decision_id: str
    endpoint: str
    stream: bool
    status: int  # of HTTP; 200 of a client that left before it had one
    outcome: str  # complete | rejected | client_disconnect | error | drained
    num_attempts: int
    prompt_tokens: int  # the cached ones among them
    completion_tokens: int
    cached_tokens: int
    estimated: bool  # the tokens were not counted exactly
    currency: str  # of the policy then; "" if it had none
    cost_micros: int | None  # None: it used tokens of a backend without a price
    total_s: float
    first_token_s: float | None  # None: nothing came
    queue_s: float


def to_bytes(record: UsageRecord) -> bytes:
    """As it waits in the outbox of the limit store: a JSON object."""
    return orjson.dumps(record)


def from_bytes(data: bytes) -> UsageRecord:
    """What `to_bytes` gave.

    Raises:
        ValueError: it did not.
    """
    try:
        return UsageRecord(**orjson.loads(data))
    except TypeError as error:
        raise ValueError(f"not a usage record of this version: {error}") from error
