"""The Unix socket of an engine process: for its owner alone, and served by one process at a time.

Knows no messages.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import zmq

from backends.spec import BackendConfigError

MAX_PATH_BYTES = 107  # sun_path of sockaddr_un, less its closing zero


@contextmanager
def bound_socket(path: Path) -> Generator[zmq.Socket[bytes]]:
    """A ROUTER bound to `path`, in a directory that only its owner can enter.

    Raises:
        BackendConfigError: the path is too long, the directory open to others, or another process
        serves here.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise BackendConfigError(f"{path}: longer than the {MAX_PATH_BYTES} bytes a socket has")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & 0o077:
        raise BackendConfigError(f"{path.parent}: open to others; chmod 700 it")
    # ZeroMQ takes a path over from whoever is bound to it. The lock goes with the process.
    with path.with_name(path.name + ".lock").open("w") as lock, zmq.Context() as context:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackendConfigError(f"{path}: another engine process serves here") from None
        with context.socket(zmq.ROUTER) as socket:
            socket.setsockopt(zmq.SNDHWM, 0)  # a slow client must not stop the others
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 1000)  # ms for the last words after a crash
            socket.bind(f"ipc://{path}")
            yield socket
