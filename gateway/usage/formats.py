"""Reports and records as text: tables for people, CSV and JSON for programs. Pure.

CSV has no totals, which whoever adds up a column would count again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import datetime, tzinfo
from typing import Any

from gateway.usage.record import UsageRecord
from gateway.usage.report import Line, Report

RECORD_FIELDS = ("time", *(field.name for field in fields(UsageRecord)))

_FIGURES = (
    "currency",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "estimated_tokens",
    "cost_micros",
    "unpriced_requests",
)


def report_table(report: Report) -> str:
    """Aligned columns, a total for each currency at the end; `~` marks what was estimated."""
    header = (*(one.value for one in report.by), "requests", "prompt", "cached", "completion")
    rows = [[*(title.upper() for title in header), "ESTIMATED", "COST"]]
    rows += [[*line.names, *_cells(line)] for line in report.lines]
    blank = [""] * (len(report.by) - 1)
    rows += [["TOTAL", *blank, *_cells(total)] for total in report.totals]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join(f"{_aligned(row, widths, len(report.by))}\n" for row in rows)


def report_csv(report: Report) -> str:
    """One line for each of the report, without totals."""
    header = (*(one.value for one in report.by), *_FIGURES)
    rows = ([*line.names, *_figures(line).values()] for line in report.lines)
    return csv_lines([header, *rows])


def report_json(report: Report) -> str:
    """One object, with `lines` and `totals`."""
    names = [one.value for one in report.by]
    lines = [
        {**dict(zip(names, line.names, strict=True)), **_figures(line)} for line in report.lines
    ]
    whole = {"lines": lines, "totals": [_figures(total) for total in report.totals]}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def record_values(record: UsageRecord, zone: tzinfo) -> dict[str, Any]:
    """A record by the names in `RECORD_FIELDS`."""
    time = datetime.fromtimestamp(record.time_s, zone).isoformat(timespec="milliseconds")
    return {"time": time, **asdict(record)}


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as RFC 4180 has them, but for the line ends, which are those of Unix."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def money(micros: int, currency: str) -> str:
    """All six decimals: nothing is rounded here."""
    return f"{micros // 1_000_000}.{micros % 1_000_000:06} {currency}"


def _figures(line: Line) -> dict[str, str | int]:
    amounts = line.amounts
    values = (
        line.currency,
        amounts.num_requests,
        amounts.prompt_tokens,
        amounts.cached_tokens,
        amounts.completion_tokens,
        amounts.estimated_tokens,
        amounts.cost_micros,
        amounts.num_unpriced,
    )
    return dict(zip(_FIGURES, values, strict=True))


def _cells(line: Line) -> list[str]:
    amounts = line.amounts
    counts = (
        amounts.num_requests,
        amounts.prompt_tokens,
        amounts.cached_tokens,
        amounts.completion_tokens,
    )
    share = amounts.estimated_share
    return [*map(str, counts), f"~{share:.1%}" if share else "-", _cost(line)]


def _cost(line: Line) -> str:
    if not line.currency:
        return "-"
    cost = money(line.amounts.cost_micros, line.currency)
    unpriced = line.amounts.num_unpriced
    return f"{cost} + {unpriced} without a price" if unpriced else cost


def _aligned(row: Sequence[str], widths: Sequence[int], num_names: int) -> str:
    """Names to the left, figures to the right, the cost as it is."""
    cells = [
        cell.ljust(width) if i < num_names else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join([*cells[:-1], row[-1]])
