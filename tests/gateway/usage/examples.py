"""Usage records for tests of what is done with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.usage.record import UsageRecord

RECORD = UsageRecord(
    request_id="0",
    time_s=1_796_083_200.25,  # 2026-12-01T00:00:00.25Z
    tenant_id="tenant_1",
    tenant="acme",
    key_id="key_1",
    plan="demo",
    model="echo",
    backend="first",
    route="all",
    decision_id="0123456789ab/all",
    endpoint="chat",
    stream=True,
    status=200,
    outcome="complete",
    num_attempts=1,
    prompt_tokens=10,
    completion_tokens=5,
    cached_tokens=4,
    estimated=False,
    currency="EUR",
    cost_micros=7,
    total_s=1.5,
    first_token_s=0.5,
    queue_s=0.125,
)


def record(request_id: object, **values: Any) -> UsageRecord:
    """The one above, with another id and other values."""
    return replace(RECORD, request_id=str(request_id), **values)


def records(count: int) -> list[UsageRecord]:
    """So many, a second apart."""
    return [record(f"{number:04}", time_s=RECORD.time_s + number) for number in range(count)]
