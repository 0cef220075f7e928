"""From settings and a policy to running processes: what `turnout serve` starts, and in which order.

The port is bound before anything is loaded, and handed to the gateway processes as an open socket:
a taken port is an error at once, and connections that wait are kept when a gateway is restarted, or
taken by another. Knows no HTTP, but for asking `/readyz`.

All gateways accept from that one socket. A socket for each (SO_REUSEPORT) would spread connections
much better: 200 that were opened at once and kept, over 4 gateways, 53, 51, 49 and 47, where the
shared one gave 79, 68, 37 and 16; of 16 over 2 gateways one got none in 69 of 120 trials, with a
socket for each in none of 120. But the kernel would go on giving each its share while it is being
started again, or after it has drained, and those connections would hang.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from backends.registry import host_command, needs_one_gateway
from gateway.app import backend_spec
from gateway.config import Settings
from gateway.policy.load import load
from gateway.policy.model import Policy
from gateway.stores.base import StoreError
from gateway.stores.opening import check_shared, open_store
from gateway.supervisor import Child, Supervisor
from gateway.telemetry import all_workers

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
    """The processes of one installation, in stages: engines first, then the gateways.

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
    return [engines, _gateways(settings, environment, run_dir, listening)]


def _gateways(
    settings: Settings, environment: dict[str, str], run_dir: Path, listening: socket.socket
) -> list[Child]:
    forget = None
    if settings.workers > 1:
        files = all_workers.files_of(run_dir)
        files.mkdir()
        environment = {**environment, all_workers.VARIABLE: str(files)}
        forget = partial(all_workers.forget, files)
    return [
        Child(
            name="gateway" if settings.workers == 1 else f"gateway {number}",
            command=(
                *(sys.executable, "-m", "gateway.server", "--fd", str(listening.fileno())),
                *("--socket", str(path)),
            ),
            environment=environment,
            pass_fds=(listening.fileno(),),
            stop_timeout_s=settings.drain_timeout_s + 10,
            on_exit=forget,
        )
        for number, path in enumerate(own_sockets(settings, run_dir), start=1)
    ]


def own_sockets(settings: Settings, run_dir: Path) -> list[Path]:
    """Where each gateway process can be asked, and no other. No engine's socket ends so."""
    return [run_dir / f"gateway-{number + 1}.http" for number in range(settings.workers)]


def check_shareable(settings: Settings, policy: Policy) -> None:
    """Refuse what several gateway processes cannot have together.

    Raises:
        LaunchError: the message says what to write instead.
    """
    if settings.workers == 1:
        return
    try:
        check_shared(settings, num_gateways=settings.workers)
    except StoreError as error:
        raise LaunchError(str(error)) from error
    for name, config in policy.backends.items():
        if needs_one_gateway(config.engine):
            raise LaunchError(
                f"backend {name!r} has the engine {config.engine!r}, which lives in one gateway "
                f"process and cannot be shared by {settings.workers}: FastChat's workers would be "
                "known to one of them only. Set TURNOUT_WORKERS=1, or give such backends a Turnout "
                "of their own"
            )


async def check_store(settings: Settings) -> None:
    """Refuse a limit store that will not do. A server that is not there yet will, once it is.

    Raises:
        LaunchError: it cannot be opened.
    """
    try:
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
        check_shareable(settings, policy)
        with tempfile.TemporaryDirectory(prefix="turnout-") as name:
            run_dir = Path(name)
            settings = replace(settings, policy=_keep(settings.policy, run_dir))
            stages = children(settings, policy, run_dir, listening)
            await check_store(settings)
            base_url = base_url_of(listening)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(
                    _announce_when_ready(
                        own_sockets(settings, run_dir), partial(announce, base_url, policy)
                    )
                )
                exit_code = await Supervisor(stages).run()
                waiting.cancel()
    return exit_code


def base_url_of(listening: socket.socket) -> str:
    """Where a socket is reached over HTTP."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _keep(policy: Path, run_dir: Path) -> Path:
    """A copy, so that a gateway that is started again serves by what the others serve by."""
    return shutil.copyfile(policy, run_dir / "policy.yaml")


async def _announce_when_ready(
    sockets: list[Path], announce: Callable[[], Awaitable[None]]
) -> None:
    await asyncio.gather(*map(_until_ready, sockets))
    await announce()


async def _until_ready(own_socket: Path) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(own_socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        async for attempt in AsyncRetrying(
            wait=wait_fixed(0.1), retry=retry_if_exception_type(httpx.HTTPError)
        ):
            with attempt:
                (await client.get("/readyz")).raise_for_status()
