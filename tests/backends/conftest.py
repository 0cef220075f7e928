"""A real engine process for a test, started on a socket in a fresh directory and ended with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.backends.reciting import Reciter

REPOSITORY = Path(__file__).parents[2]
MODEL = REPOSITORY / ".turnout" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
COUNTING = "tests.backends.counting_engine:open_engine"


def counting_command(
    socket_path: Path, options: Mapping[str, object], *, engine: str = COUNTING
) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "backends.host",
        f"--socket={socket_path}",
        f"--engine={engine}",
        f"--options={json.dumps(options)}",
    )


class EngineProcess:
    """An engine process that a test may end, and start again, as it likes."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As `kill -9` does; returns once it is dead."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._process = self._start()

    def terminate(self) -> int:
        """As the supervisor does; returns the exit code."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(timeout=30)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": "."})


class CountingProcess(EngineProcess):
    """One around the counting engine."""

    def __init__(self, command: Sequence[str], socket_path: Path) -> None:
        super().__init__(command)
        self.socket_path = socket_path


class EngineProcesses:
    """Starts engine processes and ends whatever is left of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[CountingProcess] = []

    def start(self, **options: object) -> CountingProcess:
        return self.start_on(self._directory / f"{len(self._started)}.sock", options=options)

    def start_on(
        self,
        socket_path: Path,
        *,
        engine: str = COUNTING,
        options: Mapping[str, object] | None = None,
    ) -> CountingProcess:
        command = counting_command(socket_path, options or {}, engine=engine)
        process = CountingProcess(command, socket_path)
        self._started.append(process)
        return process

    def kill_all(self) -> None:
        for process in self._started:
            process.kill()


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[EngineProcesses]:
    processes = EngineProcesses(tmp_path)
    yield processes
    processes.kill_all()


@pytest.fixture
async def reciter(engines: EngineProcesses) -> AsyncIterator[Reciter]:
    reciter = Reciter(engines)
    yield reciter
    await reciter.aclose()
