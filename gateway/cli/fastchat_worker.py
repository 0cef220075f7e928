"""`turnout fastchat-worker`: one of a policy file's backends as a worker of FastChat's controller.

The flags are those of FastChat's own worker, where they mean the same.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gateway.config import load_settings

EVERYWHERE = ("0.0.0.0", "::")


def fastchat_worker(
    policy: Annotated[Path | None, typer.Option(help="The policy file.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Which of the policy's backends; needed if it has several.")
    ] = None,
    host: Annotated[str, typer.Option(help="Nobody is asked for a key here.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free port.")] = 21002,
    worker_address: Annotated[
        str | None, typer.Option(help="Where others reach it. Default: http://HOST:PORT.")
    ] = None,
    controller_address: Annotated[str, typer.Option()] = "http://localhost:21001",
    model_names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Default: the backend's name.")
    ] = None,
    limit_worker_concurrency: Annotated[
        int, typer.Option(min=1, help="Requests at once; others wait.")
    ] = 5,
    stream_interval: Annotated[
        int, typer.Option(min=1, help="Tokens from one frame of a stream to the next.")
    ] = 2,
    conv_template: Annotated[
        str | None, typer.Option(help="Default: the one that does what the model's own does.")
    ] = None,
    no_register: Annotated[bool, typer.Option("--no-register", help="Tell no controller.")] = False,
    heart_beat_interval: Annotated[
        float,
        typer.Option(min=0.1, envvar="FASTCHAT_WORKER_HEART_BEAT_INTERVAL", help="In seconds."),
    ] = 45.0,
) -> None:
    """Serve a backend to FastChat's controller and API server, until SIGTERM or Ctrl-C."""
    # what serving needs is imported by serving only: `--help` stays instant
    from gateway import fastchat_worker as worker
    from gateway.launch import base_url_of, bind
    from gateway.telemetry import logs

    if host in EVERYWHERE and worker_address is None and not no_register:
        raise typer.BadParameter(
            f"--host {host} is no address to register; say where others reach this worker with "
            "--worker-address http://HOST:PORT"
        )
    settings = load_settings()
    settings = replace(settings, policy=policy or settings.policy)
    logs.configure(settings.log_level, as_json=settings.log_json)
    try:
        chosen = worker.find_backend(settings, backend).name
        with bind(host, port, setting="--port") as listening:
            options = worker.WorkerOptions(
                backend=chosen,
                model_names=split_names(model_names) or (chosen,),
                worker_address=worker_address or base_url_of(listening),
                controller_address=None if no_register else controller_address,
                limit_concurrency=limit_worker_concurrency,
                stream_interval=stream_interval,
                conv_template=conv_template,
                heart_beat_interval_s=heart_beat_interval,
            )
            typer.echo(
                f"Turnout serves {', '.join(options.model_names)} as a FastChat worker on "
                f"{options.worker_address}"
            )
            exit_code = asyncio.run(worker.run(settings, options, listening))
    except worker.CANNOT_START as error:
        typer.echo(f"turnout: {error}", err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    raise typer.Exit(exit_code)


def split_names(text: str | None) -> tuple[str, ...]:
    """The names between commas; none of them is empty."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))
