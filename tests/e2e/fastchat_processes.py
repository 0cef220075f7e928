"""FastChat's own controller and API server, and a worker of ours between them, for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.e2e.running import ROOT

PYTHON = ROOT / ".venv-fastchat/bin/python"
TIMEOUT_S = 60.0


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], directory: Path, name: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that logs to `directory`, and is killed when the block ends if it lives then."""
    with (directory / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "LOGDIR": str(directory)},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def controller(directory: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """FastChat's controller, answering."""
    module = ("-m", "fastchat.serve.controller", "--host", "127.0.0.1", "--port", str(port))
    with running((PYTHON, *module), directory, "controller") as process:
        until(lambda: httpx.post(f"http://127.0.0.1:{port}/list_models", trust_env=False))
        yield process


@contextlib.contextmanager
def api_server(directory: Path, controller_address: str) -> Iterator[httpx.Client]:
    """A client of FastChat's API server."""
    port = free_port()
    module = ("-m", "fastchat.serve.openai_api_server", "--host", "127.0.0.1")
    options = ("--port", str(port), "--controller-address", controller_address)
    with (
        running((PYTHON, *module, *options), directory, "api_server"),
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, trust_env=False
        ) as client,
    ):
        until(lambda: client.get("/openapi.json"))
        yield client


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """`turnout fastchat-worker`, and a client of it."""

    address: str
    process: subprocess.Popen[bytes]
    client: httpx.Client

    def post(self, path: str, body: object = None) -> dict[str, object]:
        """The JSON that a route answers with."""
        response = self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        found: dict[str, object] = response.json()
        return found

    def stop(self) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def worker(directory: Path, policy: str, *options: str) -> Iterator[RunningWorker]:
    """A worker of ours on a free port, once its engine is ready."""
    path = directory / "policy.yaml"
    path.write_text(policy)
    port = free_port()
    command = (sys.executable, "-m", "gateway.cli", "fastchat-worker", "--policy", str(path))
    with (
        running((*command, "--port", str(port), *options), directory, "worker") as process,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, trust_env=False
        ) as client,
    ):
        found = RunningWorker(address=str(client.base_url), process=process, client=client)
        try:
            until(lambda: found.post("/model_details")["context_length"])
            yield found
        finally:
            if process.poll() is None:
                found.stop()


def until(holds: Callable[[], object]) -> None:
    """Return as soon as `holds()`; what is not there yet does not hold."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(httpx.TransportError, KeyError):
            if holds():
                return
        assert time.monotonic() < deadline_s, "it took too long"
        time.sleep(0.05)
