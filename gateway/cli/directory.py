"""What the commands about tenants and keys share: opening the directory, and plain tables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from gateway.config import ConfigError, data_dir

if TYPE_CHECKING:
    from gateway.tenancy.database import Directory

_Result = TypeVar("_Result")


def with_directory(work: Callable[[Directory], Awaitable[_Result]]) -> _Result:
    """Run `work` on the directory of this installation; what it cannot do ends the command."""
    # Here, because sqlalchemy takes 0.3 s to import, which `--help` must not wait for.
    from gateway.tenancy.database import Directory
    from gateway.tenancy.schema import DirectoryError

    async def run() -> _Result:
        directory = await Directory.open(data_dir())
        try:
            return await work(directory)
        finally:
            await directory.aclose()

    try:
        return asyncio.run(run())
    except (ConfigError, DirectoryError) as error:
        typer.echo(f"turnout: {error}", err=True)
        raise typer.Exit(1) from None


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, never cut to a terminal's width: what is printed can be piped."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
