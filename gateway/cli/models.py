"""`turnout models`: which models there are, and how to get them onto this disk."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gateway.catalog import (
    CATALOG,
    CatalogError,
    CatalogModel,
    find_model,
    missing_bytes,
    model_path,
)
from gateway.config import data_dir
from gateway.pull import pull

app = typer.Typer(no_args_is_help=True, help="List and pull models.")


@app.command("list")
def list_models() -> None:
    """List the models of the catalog and whether they are on this disk."""
    home = data_dir()
    for model in CATALOG.values():
        typer.echo(
            f"{model.name:24} {model.size_bytes / 1e6:5.0f} MB  {model.license:10} "
            f"{_state(model, home):10}  {model.summary}"
        )


@app.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A name that `turnout models list` shows.")],
    force: Annotated[bool, typer.Option("--force", help="Even if a good file is here.")] = False,
    source: Annotated[
        str, typer.Option("--from", metavar="file:PATH", help="Take this file, do not download.")
    ] = "",
) -> None:
    """Download a model, check it, and put it where backends look for it."""
    console = Console()
    try:
        model = find_model(name)
        typer.echo(f"{model.summary}. License: {model.license}")
        if model.terms:
            typer.echo(model.terms)
        pull(
            model,
            data_dir(),
            _ConsoleReporter(console),
            sources=(source,) if source else (),
            force=force,
        )
    except CatalogError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _state(model: CatalogModel, home: Path) -> str:
    if missing_bytes(model, home) == 0:
        return "pulled"
    return "damaged" if model_path(model, home).exists() else "not pulled"


class _ConsoleReporter:
    """Progress bars on a terminal, plain lines otherwise."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @property
    def interactive(self) -> bool:
        return self._console.is_terminal

    def say(self, line: str) -> None:
        typer.echo(line)

    @contextmanager
    def copying(self, what: str, size_bytes: int) -> Generator[Callable[[int], object]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self.interactive) as progress:
            task = progress.add_task(what, total=size_bytes)
            yield lambda num_bytes: progress.advance(task, num_bytes)
