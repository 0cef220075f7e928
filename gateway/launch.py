"""From settings and a policy to running processes: what `turnout serve` starts, and in which order.

The port is bound before anything is loaded, and handed to the gateway process as an open socket: a
taken port is an error at once, and a restarted gateway keeps the connections that wait. Knows no
HTTP, but for asking `/readyz`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from backends.registry import host_command
from gateway.app import backend_spec
from gateway.config import Settings
from gateway.policy.load import load
from gateway.policy.model import Policy
from gateway.stores.base import StoreError
from gateway.stores.opening import check_shared, open_store
from gateway.supervisor import Child, Supervisor

BACKLOG = 2048

Announce = Callable[[str, Policy], Awaitable[None]]
"""Takes the base URL and the policy."""


class LaunchError(Exception):
    """Serving cannot start; the message says why and what to do."""


def bind(host: str, port: int, *, setting: str = "TURNOUT_PORT") -> socket.socket:
    """A listening socket that child processes may inherit. setting: what chooses the port.

    Raises:
        LaunchError: the port is taken, or may not be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise LaunchError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            f"stop what listens there, or set {setting} to another port"
        ) from error
    return listening


def children(
    settings: Settings, policy: Policy, run_dir: Path, listening: socket.socket
) -> list[list[Child]]:
    """The processes of one installation, in stages: engines first, then the gateway.

    Raises:
        CatalogError, BackendConfigError: a model is not there, or an engine's options are wrong.
    """
    here = {"TURNOUT_RUN_DIR": str(run_dir)}
    environment = settings.to_environment() | here
    for_engines = settings.to_engine_environment() | here
    engines: list[Child] = []
    for config in policy.backends.values():
        command = host_command(backend_spec(config, settings, run_dir))
        if command is not None:
            engines.append(
                Child(name=f"engine {config.name}", command=command, environment=for_engines)
            )
    gateway = Child(
        name="gateway",
        command=(sys.executable, "-m", "gateway.server", "--fd", str(listening.fileno())),
        environment=environment,
        pass_fds=(listening.fileno(),),
        stop_timeout_s=settings.drain_timeout_s + 10,
    )
    return [engines, [gateway]]


async def check_store(settings: Settings, *, num_gateways: int) -> None:
    """Refuse a limit store that will not do. A server that is not there yet will, once it is.

    Raises:
        LaunchError: it cannot be opened, or does not count for all gateway processes together.
    """
    try:
        check_shared(settings, num_gateways=num_gateways)
        store = await open_store(settings)
    except StoreError as error:
        raise LaunchError(str(error)) from error
    await store.aclose()


async def run(settings: Settings, announce: Announce) -> int:
    """Serve until a signal; the exit code. `announce` is called once, when requests are served.

    Raises:
        LaunchError, PolicyError, CatalogError, BackendConfigError: nothing was started.
    """
    with bind(settings.host, settings.port) as listening:
        policy = load(settings.policy)
        with tempfile.TemporaryDirectory(prefix="turnout-") as run_dir:
            stages = children(settings, policy, Path(run_dir), listening)
            await check_store(settings, num_gateways=len(stages[-1]))
            base_url = base_url_of(listening)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(_announce_when_ready(base_url, policy, announce))
                exit_code = await Supervisor(stages).run()
                waiting.cancel()
    return exit_code


def base_url_of(listening: socket.socket) -> str:
    """Where a socket is reached over HTTP."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _announce_when_ready(base_url: str, policy: Policy, announce: Announce) -> None:
    async with httpx.AsyncClient(base_url=base_url, trust_env=False) as client:
        async for attempt in AsyncRetrying(
            wait=wait_fixed(0.1), retry=retry_if_exception_type(httpx.HTTPError)
        ):
            with attempt:
                (await client.get("/readyz")).raise_for_status()
    await announce(base_url, policy)
