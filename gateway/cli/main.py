"""`turnout`: the table of commands. Each lives in a module of its own."""

from __future__ import annotations

import os
import sys

import typer

from gateway.cli import (
    admin_keys,
    bench,
    doctor,
    fastchat_worker,
    keys,
    models,
    serve,
    tenants,
    usage,
)
from gateway.config import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An LLM gateway with its own engines.",
)
app.command("serve")(serve.serve)
app.command("fastchat-worker")(fastchat_worker.fastchat_worker)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.add_typer(keys.app, name="keys")
app.add_typer(admin_keys.app, name="admin-keys")
app.add_typer(tenants.app, name="tenants")
app.add_typer(models.app, name="models", help="List and pull models.")
app.add_typer(usage.app, name="usage", help="What was used and what it costs.")


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except ConfigError as error:
        typer.echo(f"turnout: {error}", err=True)
        sys.exit(os.EX_CONFIG)
