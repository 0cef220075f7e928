"""A gateway process: uvicorn over an inherited socket, and a shutdown that drains.

On the first SIGTERM or SIGINT readiness turns false and new requests get a 503 while running ones
go on; the process ends when they have, and what is left when the drain timeout is over is ended
with an error event. A second signal does not wait. Run by the supervisor: `python -m gateway.server
--fd N --socket PATH`, with the settings in the environment.

The inherited socket is shared by all gateway processes of the host, and whoever is free takes the
next connection. The one at PATH is this process's own, for those who must ask it and no other.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import uvicorn

from gateway.app import build_app
from gateway.config import Settings, load_settings
from gateway.drain import Drain
from gateway.telemetry import logs

FORCED_AFTER_S = 5
"""After the drain timeout: for error events to go out and leases to be settled."""

IDLE_CONNECTION_S = 75
"""Longer than clients keep one that is idle (httpx and openai 5 s, load balancers up to 60): were
it shorter, or as long, a request could meet the close half-way and see its connection reset."""


class CleanServer(uvicorn.Server):
    """uvicorn's server, with exit code 0 after a clean end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # uvicorn would raise the signal again after a clean end, and turn exit code 0 into -15
        previous = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class DrainingServer(CleanServer):
    """With our signals: the first one drains, the second one ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain.is_draining:
            self.force_exit = self.should_exit = True
        self._drain.begin(time.monotonic())

    async def on_tick(self, counter: int) -> bool:
        # ten times a second; the socket stays open meanwhile, so that newcomers get an answer
        if self._drain.is_over(time.monotonic()):
            self.should_exit = True
        return await super().on_tick(counter)


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m gateway.server")
    parser.add_argument("--fd", type=int, required=True, help="an open, bound TCP socket")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen besides")
    arguments = parser.parse_args()
    settings = load_settings()
    logs.configure(settings.log_level, as_json=settings.log_json)
    server = make_server(settings)
    with socket.socket(fileno=arguments.fd) as listening, bind_own(arguments.socket) as own:
        server.run(sockets=[listening, own])


def bind_own(path: Path) -> socket.socket:
    """A listening Unix socket; one that a process before this one has left is replaced."""
    path.unlink(missing_ok=True)
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.bind(str(path))
    own.listen()
    return own


def make_server(settings: Settings) -> DrainingServer:
    """The server of the gateway process, not running yet."""
    drain = Drain(settings.drain_timeout_s)
    config = uvicorn.Config(
        build_app(settings, drain),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # or it believes every process of this host: gateway/networks.py
        timeout_keep_alive=IDLE_CONNECTION_S,
        timeout_graceful_shutdown=FORCED_AFTER_S,
    )
    return DrainingServer(config, drain)


if __name__ == "__main__":
    main()
