"""What the commands about tenants and keys share: opening the directory, and plain tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.config import ConfigError, load_settings
from gateway.redaction import redact

if TYPE_CHECKING:
    from gateway.tenancy.database import Directory

_Result = TypeVar("_Result")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


def with_directory(work: Callable[[Directory], Awaitable[_Result]]) -> _Result:
    """Run `work` on the directory of this installation; what it cannot do ends the command."""
    # Here, because sqlalchemy takes 0.3 s to import, which `--help` must not wait for.
    from gateway.tenancy.database import open_directory
    from gateway.tenancy.schema import DirectoryError

    async def run() -> _Result:
        directory = await open_directory(load_settings())
        try:
            return await work(directory)
        finally:
            await directory.aclose()

    try:
        return asyncio.run(run())
    except (ConfigError, DirectoryError) as error:
        typer.echo(f"turnout: {redact(str(error))}", err=True)  # a key pasted in place of its id
        raise typer.Exit(1) from None


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, never cut to a terminal's width: what is printed can be piped."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def echo_json(document: dict[str, object]) -> None:
    """One object on a line of its own."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def date(time_s: float) -> str:
    """A time as people read it, in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%MZ")
