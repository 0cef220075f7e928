"""`turnout usage`: what was used and what it costs, added up, or request by request."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.config import ConfigError, data_dir
from gateway.usage.formats import (
    RECORD_FIELDS,
    csv_lines,
    record_values,
    report_csv,
    report_json,
    report_table,
)
from gateway.usage.period import moment, time_zone
from gateway.usage.report import dimensions, report

if TYPE_CHECKING:
    from gateway.usage.store import Selection, UsageStore

app = typer.Typer(help="What was used and what it costs.")


class ReportFormat(Enum):
    """How a report is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class RecordFormat(Enum):
    """How single records are written; as JSON, one object a line."""

    CSV = "csv"
    JSON = "json"


_FORMATS = {
    ReportFormat.TABLE: report_table,
    ReportFormat.CSV: report_csv,
    ReportFormat.JSON: report_json,
}


_Read = TypeVar("_Read")


def reading(read: Callable[[str], _Read], text: str) -> _Read:
    """What an option says; what it cannot say ends the command."""
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


By = Annotated[
    str, typer.Option(help="Comma-separated: tenant, model, backend, key, plan, day, hour.")
]
Since = Annotated[str, typer.Option(help="24h, 7d, 2026-12-01, 2026-12-01T10:00.")]
Until = Annotated[str, typer.Option(help="As --since; itself not included.")]
Tenant = Annotated[str, typer.Option(help="Only this tenant.")]
Model = Annotated[str, typer.Option(help="Only this public model.")]
Zone = Annotated[str, typer.Option("--tz", help="Of days, hours and times without an offset.")]


@app.callback(invoke_without_command=True)
def usage(
    context: typer.Context,
    by: By = "tenant",
    since: Since = "",
    until: Until = "",
    tenant: Tenant = "",
    model: Model = "",
    format_: Annotated[ReportFormat, typer.Option("--format")] = ReportFormat.TABLE,
    tz: Zone = "UTC",
) -> None:
    """Add up what was used, and what it costs."""
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if _is_given(context, name)]
        if given:
            raise typer.BadParameter(f"options go behind {context.invoked_subcommand!r}")
        return
    grouping, in_zone = reading(dimensions, by), reading(time_zone, tz)

    async def work(store: UsageStore) -> None:
        selection = _selection(since, until, tenant, model, in_zone)
        made = report(grouping, await store.sums(grouping, selection), in_zone)
        typer.echo(_FORMATS[format_](made), nl=False)

    _with_store(work)


@app.command("records")
def records(
    since: Since = "",
    until: Until = "",
    tenant: Tenant = "",
    model: Model = "",
    format_: Annotated[RecordFormat, typer.Option("--format")] = RecordFormat.JSON,
    tz: Zone = "UTC",
) -> None:
    """Write single records, oldest first."""
    in_zone = reading(time_zone, tz)

    async def work(store: UsageStore) -> None:
        if format_ is RecordFormat.CSV:
            sys.stdout.write(csv_lines([RECORD_FIELDS]))
        selection = _selection(since, until, tenant, model, in_zone)
        async with aclosing(store.records(selection)) as found:
            async for record in found:
                values = record_values(record, in_zone)
                if format_ is RecordFormat.CSV:
                    sys.stdout.write(csv_lines([values.values()]))
                else:
                    sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")

    _with_store(work)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _selection(since: str, until: str, tenant: str, model: str, in_zone: tzinfo) -> Selection:
    from gateway.usage.store import Selection  # as below

    now_s = time.time()
    try:
        return Selection(
            since_s=moment(since, now_s=now_s, zone=in_zone) if since else None,
            until_s=moment(until, now_s=now_s, zone=in_zone) if until else None,
            tenant=tenant or None,
            model=model or None,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _with_store(work: Callable[[UsageStore], Awaitable[None]]) -> None:
    """Run `work` on the records of this installation; what it cannot do ends the command."""
    # Here, because sqlalchemy takes 0.3 s to import, which `--help` must not wait for.
    from gateway.usage.schema import UsageError
    from gateway.usage.store import UsageStore

    async def run() -> None:
        store = await UsageStore.open(data_dir())
        try:
            await work(store)
        finally:
            await store.aclose()

    try:
        asyncio.run(run())
    except (ConfigError, UsageError) as error:
        typer.echo(f"turnout: {error}", err=True)
        raise typer.Exit(1) from None
