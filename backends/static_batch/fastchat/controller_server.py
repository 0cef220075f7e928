"""Controllers on ports of their own, inside the process of the gateway.

A port is one thing for the whole process, and so is a controller: backends that name the same
address share it, and its workers, each with a model of its own. Knows no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass

import uvicorn

from backends.spec import BackendConfigError
from backends.static_batch.fastchat.controller import Controller
from backends.static_batch.fastchat.dispatch import DispatchMethod, Registry
from backends.static_batch.fastchat.worker_address import AddressRule
from backends.static_batch.fastchat.worker_client import WorkerClient

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 2  # for streams that are being forwarded


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions:
    """The options of an engine `fastchat`. Backends on one port must have the same."""

    controller_host: str = "127.0.0.1"
    controller_port: int = 21001  # FastChat's; 0: any free port, which nobody else shares
    dispatch_method: DispatchMethod = "shortest_queue"
    heart_beat_expiration_s: float = 90.0  # FastChat's
    worker_api_timeout_s: float = 100.0  # FastChat's: for an answer, and between two pieces of one
    worker_hosts: str = ""  # who may register from outside private networks; separated by commas

    def __post_init__(self) -> None:
        if not 0 <= self.controller_port < 1 << 16:
            raise ValueError("controller_port must be in [0, 65535]")
        if not self.heart_beat_expiration_s > 0.0 or not self.worker_api_timeout_s > 0.0:
            raise ValueError("heart_beat_expiration_s and worker_api_timeout_s must be above 0")

    def address_rule(self) -> AddressRule:
        hosts = (host.strip().lower() for host in self.worker_hosts.split(","))
        return AddressRule(listed_hosts=frozenset(host for host in hosts if host))


class ControllerServer:
    """One controller that listens. Made by `share`, closed by whoever gives it back last."""

    def __init__(self, options: ControllerOptions, listening: socket.socket) -> None:
        self.options = options
        self.num_shares = 1
        client = WorkerClient(options.worker_api_timeout_s)
        self.controller = Controller(
            Registry(options.dispatch_method, options.heart_beat_expiration_s),
            client,
            options.address_rule(),
            clock=time.monotonic,
            draw=random.random,
        )
        self.address = "http://{}:{}".format(*listening.getsockname()[:2])
        self._server = _QuietServer(
            uvicorn.Config(
                self.controller.build_app(),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            )
        )
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def aclose(self) -> None:
        self._server.should_exit = True
        await self._serving
        await self.controller.client.aclose()


class _QuietServer(uvicorn.Server):
    """Leaves the process's signals to the gateway."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


_shared: dict[tuple[str, int], ControllerServer] = {}
"""By host and port, for as long as they listen."""


def share(options: ControllerOptions, *, where: str) -> ControllerServer:
    """The controller on that port, which begins to listen if it did not. Give it back with `leave`.

    where: the backend's name, for messages.

    Raises:
        BackendConfigError: it cannot listen there, or does so with other options.
    """
    place = options.controller_host, options.controller_port
    server = _shared.get(place)
    if server is None:
        server = ControllerServer(options, _bind(options, where))
        if options.controller_port:
            _shared[place] = server
        logger.info("%s: FastChat's workers may register at %s", where, server.address)
        return server
    if server.options != options:
        raise BackendConfigError(
            f"{where}: another backend has a controller on port {options.controller_port} with "
            "other options; give both the same, or one of them another controller_port"
        )
    server.num_shares += 1
    return server


async def leave(server: ControllerServer) -> None:
    """Give a share back; the last one closes it."""
    server.num_shares -= 1
    if server.num_shares:
        return
    _shared.pop((server.options.controller_host, server.options.controller_port), None)
    await server.aclose()


def _bind(options: ControllerOptions, where: str) -> socket.socket:
    host, port = options.controller_host, options.controller_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise BackendConfigError(
            f"{where}: the controller cannot listen on {host} port {port}: {error.strerror}; stop "
            "what listens there, or set controller_port to another port"
        ) from error
    return listening
