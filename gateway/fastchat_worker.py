"""A FastChat worker's processes: what `turnout fastchat-worker` starts, and the worker's own.

One backend of a policy file is served, without its tenants, limits and routes: FastChat has none of
them. The worker process is run by the supervisor as `python -m gateway.fastchat_worker`, beside the
engine's. On SIGTERM it takes no new connections and finishes what runs, within the drain timeout.

Knows no wire format: `backends.static_batch.fastchat` has it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import uvicorn
import uvloop

from backends.base import Tokenizing
from backends.registry import BackendConfigError, host_command, open_backend
from backends.static_batch.fastchat.heartbeat import Heartbeat
from backends.static_batch.fastchat.templates import TemplateError, choose, named
from backends.static_batch.fastchat.worker import Worker, build_app
from gateway.app import backend_spec
from gateway.catalog import CatalogError
from gateway.config import Settings, load_settings
from gateway.launch import LaunchError
from gateway.policy.load import PolicyError, load
from gateway.policy.model import BackendConfig
from gateway.server import CleanServer
from gateway.supervisor import Child, Supervisor
from gateway.telemetry import logs
from native_engine.errors import ModelFileError

logger = logging.getLogger("turnout.fastchat_worker")

CANNOT_START = (
    *(LaunchError, PolicyError, CatalogError),
    *(BackendConfigError, ModelFileError, TemplateError),
)
"""What is wrong with a configuration; each message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What is served, and to whom it is told."""

    backend: str  # of the policy file
    model_names: tuple[str, ...]
    worker_address: str
    controller_address: str | None  # None: registers nowhere
    limit_concurrency: int
    stream_interval: int
    conv_template: str | None  # None: as the model's own chat template
    heart_beat_interval_s: float


def find_backend(settings: Settings, name: str | None) -> BackendConfig:
    """The policy file's backend of that name; without one, the only backend there is.

    Raises:
        PolicyError: the file cannot be used.
        LaunchError: there is no such backend, or several to choose from.
    """
    backends = load(settings.policy).backends
    if name is None and len(backends) == 1:
        (name,) = backends
    if name is None or name not in backends:
        wrong = "it has several backends" if name is None else f"no backend is named {name!r}"
        raise LaunchError(f"{settings.policy}: {wrong}; use --backend {' | '.join(backends)}")
    return backends[name]


async def run(settings: Settings, options: WorkerOptions, listening: socket.socket) -> int:
    """Serve until a signal; the exit code.

    Raises: one of `CANNOT_START`: nothing was started.
    """
    if options.conv_template is not None:
        named(options.conv_template)
    with tempfile.TemporaryDirectory(prefix="turnout-") as run_dir:
        return await Supervisor(children(settings, options, Path(run_dir), listening)).run()


def children(
    settings: Settings, options: WorkerOptions, run_dir: Path, listening: socket.socket
) -> list[list[Child]]:
    """The engine's process, if it has one, and then the worker's.

    Raises: one of `CANNOT_START`.
    """
    config = find_backend(settings, options.backend)
    environment = {**settings.to_engine_environment(), "TURNOUT_RUN_DIR": str(run_dir)}
    command = host_command(backend_spec(config, settings, run_dir))
    engines = []
    if command is not None:
        engines = [Child(name=f"engine {config.name}", command=command, environment=environment)]
    worker = Child(
        name="fastchat worker",
        command=(
            *(sys.executable, "-m", "gateway.fastchat_worker"),
            *("--fd", str(listening.fileno()), "--options", msgspec.json.encode(options).decode()),
        ),
        environment=environment,
        pass_fds=(listening.fileno(),),
        stop_timeout_s=settings.drain_timeout_s + 10,
    )
    return [engines, [worker]]


async def serve(settings: Settings, options: WorkerOptions, listening: socket.socket) -> None:
    """The worker's own process, until a signal.

    Raises: one of `CANNOT_START`.
    """
    config = find_backend(settings, options.backend)
    backend = await open_backend(backend_spec(config, settings, settings.run_dir))
    async with aclosing(backend):
        if not isinstance(backend, Tokenizing):
            raise LaunchError(
                f"backend {config.name}: FastChat asks its workers to count tokens, and this "
                "backend has no tokenizer of its own"
            )
        conversation = await choose(options.conv_template, backend)
        logger.info("chats are written by conversation template %s", conversation.name)
        worker = Worker(
            backend,
            model_names=options.model_names,
            conversation=conversation,
            limit_concurrency=options.limit_concurrency,
            stream_interval=options.stream_interval,
        )
        server = CleanServer(
            uvicorn.Config(
                build_app(worker),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(settings.drain_timeout_s),
            )
        )
        async with _heartbeat(worker, options):
            await server.serve(sockets=[listening])


@asynccontextmanager
async def _heartbeat(worker: Worker, options: WorkerOptions) -> AsyncGenerator[None, None]:
    """Beats until the block ends."""
    if options.controller_address is None:
        yield
        return
    async with httpx.AsyncClient(trust_env=False) as http:
        heartbeat = Heartbeat(
            worker,
            http,
            controller_address=options.controller_address,
            worker_address=options.worker_address,
            interval_s=options.heart_beat_interval_s,
        )
        async with asyncio.TaskGroup() as tasks:
            beating = tasks.create_task(heartbeat.run())
            yield
            beating.cancel()


def main() -> None:
    """Serve until told to stop; `os.EX_CONFIG` if that can never work."""
    parser = argparse.ArgumentParser(prog="python -m gateway.fastchat_worker")
    parser.add_argument("--fd", type=int, required=True, help="an open, bound TCP socket")
    parser.add_argument("--options", required=True, help="WorkerOptions, as JSON")
    arguments = parser.parse_args()
    options = msgspec.json.decode(arguments.options, type=WorkerOptions)
    settings = load_settings()
    logs.configure(settings.log_level, as_json=settings.log_json)
    try:
        with socket.socket(fileno=arguments.fd) as listening:
            uvloop.run(serve(settings, options, listening))
    except CANNOT_START as error:
        logger.error("%s", error)
        sys.exit(os.EX_CONFIG)


if __name__ == "__main__":
    main()
