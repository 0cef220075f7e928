"""Usage over the admin API: the reports and records of `turnout usage`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import tzinfo
from typing import TypeVar

from starlette.responses import Response, StreamingResponse

from gateway.admin.call import AdminCall
from gateway.errors import InvalidRequest
from gateway.usage.formats import RECORD_FIELDS, csv_lines, record_values, report_csv, report_json
from gateway.usage.period import moment, time_zone
from gateway.usage.record import UsageRecord
from gateway.usage.report import dimensions, report
from gateway.usage.store import Selection

SELECTION = ("since", "until", "tenant", "model", "tz", "format")
"""Parameters of both."""

CHUNK_CHARS = 64 * 1024
"""How much of an export is sent at a time, and held in memory beside one page of records."""

_CSV = "text/csv; charset=utf-8"

_Read = TypeVar("_Read")


async def show_usage(call: AdminCall) -> Response:
    """What was used and what it costs, added up."""
    zone = _read(call, "tz", time_zone, "UTC")
    by = _read(call, "by", dimensions, "tenant")
    is_csv = _format(call, "json") == "csv"
    selection = _selection(call, zone)
    made = report(by, await call.services.usage_store.sums(by, selection), zone)
    if is_csv:
        return Response(report_csv(made), media_type=_CSV)
    return Response(report_json(made), media_type="application/json")


async def export_records(call: AdminCall) -> Response:
    """Single records, oldest first, up to now. An export that breaks off ends without its end."""
    zone = _read(call, "tz", time_zone, "UTC")
    is_csv = _format(call, "ndjson") == "csv"
    records = call.services.usage_store.records(_selection(call, zone))
    chunks = _chunks(records, zone, is_csv=is_csv)
    first = await anext(chunks, "")  # what fails at once still gets a status of its own

    async def body() -> AsyncGenerator[str]:
        async with aclosing(chunks):
            yield first
            async for chunk in chunks:
                yield chunk

    return StreamingResponse(body(), media_type=_CSV if is_csv else "application/x-ndjson")


async def _chunks(
    records: AsyncGenerator[UsageRecord], zone: tzinfo, *, is_csv: bool
) -> AsyncGenerator[str]:
    lines = [csv_lines([RECORD_FIELDS])] if is_csv else []
    num_chars = 0
    async with aclosing(records):
        async for record in records:
            values = record_values(record, zone)
            line = (
                csv_lines([values.values()])
                if is_csv
                else json.dumps(values, ensure_ascii=False) + "\n"
            )
            lines.append(line)
            num_chars += len(line)
            if num_chars >= CHUNK_CHARS:
                yield "".join(lines)
                lines, num_chars = [], 0
    if lines:
        yield "".join(lines)


def _selection(call: AdminCall, zone: tzinfo) -> Selection:
    def time_s(text: str) -> float | None:
        return moment(text, now_s=call.now_s, zone=zone) if text else None

    until_s = _read(call, "until", time_s, "")
    return Selection(
        since_s=_read(call, "since", time_s, ""),
        until_s=call.now_s if until_s is None else until_s,  # or an export could go on for ever
        tenant=call.query("tenant") or None,
        model=call.query("model") or None,
    )


def _format(call: AdminCall, default: str) -> str:
    text = call.query("format", default)
    if text not in (default, "csv"):
        raise InvalidRequest(f"format must be {default} or csv.", param="format")
    return text


def _read(call: AdminCall, name: str, read: Callable[[str], _Read], default: str) -> _Read:
    """A parameter's value; what it cannot be is the client's mistake."""
    try:
        return read(call.query(name, default))
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}.", param=name) from None
