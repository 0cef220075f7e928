from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from backends.client import EngineClient
from backends.errors import StreamInterrupted
from backends.messages import Output
from gateway.supervisor import Backoff, Child, Supervisor
from native_engine.types import EngineRequest, SamplingParams
from tests.backends.conftest import REPOSITORY, counting_command

QUICK = Backoff(first_s=0.01, max_s=0.02)

WRITE_PID = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')"
WAIT = "import signal; signal.pause()"
IGNORE_SIGTERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


class Lives:
    """A child that writes its process id down, once per life, and then does something."""

    def __init__(self, directory: Path, name: str, *code: str) -> None:
        self._file = directory / name
        script = "; ".join([*code[:-1], WRITE_PID, *code[-1:]])
        self.child = Child(
            name=name, command=(sys.executable, "-c", script, str(self._file)), stop_timeout_s=30
        )

    @property
    def pids(self) -> list[int]:
        text = self._file.read_text() if self._file.exists() else ""
        return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    async def until_started(self, times: int = 1) -> int:
        await until(lambda: len(self.pids) >= times)
        return self.pids[-1]


async def until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self/stat").exists():
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just gone
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(autouse=True)
def _info_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="gateway.supervisor"):
        yield


@pytest.mark.parametrize(
    ("last_delay_s", "lived_s", "delay_s"),
    [(0.0, 0.0, 0.2), (0.2, 0.0, 0.4), (6.4, 29.9, 10.0), (10.0, 1.0, 10.0), (10.0, 30.0, 0.2)],
)
def test_waits_twice_as_long_each_time_until_a_child_lives(
    last_delay_s: float, lived_s: float, delay_s: float
) -> None:
    assert Backoff().next_delay_s(last_delay_s, lived_s) == delay_s


async def test_restarts_a_child_that_is_killed_and_says_by_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Lives(tmp_path, "engine", WAIT)
    supervisor = asyncio.create_task(Supervisor([[engine.child]], backoff=QUICK).run())

    os.kill(await engine.until_started(), signal.SIGKILL)
    await engine.until_started(times=2)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0
    assert "engine exited: killed by signal 9 (Killed)" in caplog.text
    assert "engine exited: killed by signal 15 (Terminated)" in caplog.text


async def test_restarts_a_child_that_exits_again_and_again(tmp_path: Path) -> None:
    engine = Lives(tmp_path, "engine", "sys.exit(3)")
    supervisor = asyncio.create_task(Supervisor([[engine.child]], backoff=QUICK).run())

    await engine.until_started(times=4)
    os.kill(os.getpid(), signal.SIGINT)

    assert await supervisor == 0


async def test_stops_the_last_stage_before_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, gateway = Lives(tmp_path, "engine", WAIT), Lives(tmp_path, "gateway", WAIT)
    supervisor = asyncio.create_task(Supervisor([[engine.child], [gateway.child]]).run())
    pids = [await engine.until_started(), await gateway.until_started()]

    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0
    exits = [line.split()[0] for line in caplog.messages if "exited" in line]
    assert exits == ["gateway", "engine"]
    assert not any(is_alive(pid) for pid in pids)


async def test_kills_on_a_second_signal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stubborn = Lives(tmp_path, "stubborn", IGNORE_SIGTERM, WAIT)
    supervisor = asyncio.create_task(Supervisor([[stubborn.child]]).run())
    await stubborn.until_started()

    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: "SIGTERM: stopping" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 1
    assert "stubborn exited: killed by signal 9 (Killed)" in caplog.text


async def test_kills_a_child_that_takes_too_long_to_stop(tmp_path: Path) -> None:
    stubborn = Lives(tmp_path, "stubborn", IGNORE_SIGTERM, WAIT)
    child = Child(name="stubborn", command=stubborn.child.command, stop_timeout_s=0.05)
    supervisor = asyncio.create_task(Supervisor([[child]]).run())
    pid = await stubborn.until_started()

    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 1
    assert not is_alive(pid)


async def test_stops_a_child_that_waits_for_its_restart(tmp_path: Path) -> None:
    engine = Lives(tmp_path, "engine", "sys.exit(3)")
    patient = Backoff(first_s=3600, max_s=3600)
    supervisor = asyncio.create_task(Supervisor([[engine.child]], backoff=patient).run())
    pid = await engine.until_started()
    await until(lambda: not is_alive(pid))

    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0
    assert len(engine.pids) == 1


async def test_gives_up_when_a_child_says_that_its_configuration_is_hopeless(
    tmp_path: Path,
) -> None:
    """P-PORT: a port in use ends the whole server at once, with the child's exit code."""
    engine = Lives(tmp_path, "engine", WAIT)
    gateway = Lives(tmp_path, "gateway", f"sys.exit({os.EX_CONFIG})")

    assert await Supervisor([[engine.child], [gateway.child]]).run() == os.EX_CONFIG

    assert len(gateway.pids) == 1
    assert not any(is_alive(pid) for pid in engine.pids)


async def test_does_not_give_up_a_child_that_has_once_been_restarted(tmp_path: Path) -> None:
    flag = tmp_path / "once"
    code = f"import pathlib; p = pathlib.Path({str(flag)!r}); code = 78 if p.exists() else 1"
    engine = Lives(tmp_path, "engine", code, "p.touch(); sys.exit(code)")
    supervisor = asyncio.create_task(Supervisor([[engine.child]], backoff=QUICK).run())

    await engine.until_started(times=4)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0


async def test_goes_on_trying_a_command_that_cannot_be_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = tmp_path / "late"
    child = Child(name="late", command=(str(late),))
    supervisor = asyncio.create_task(Supervisor([[child]], backoff=QUICK).run())
    await until(lambda: "late cannot start" in caplog.text)

    late.write_text("#!/bin/sh\nexec sleep 1000\n")
    late.chmod(0o700)
    await until(lambda: "late started" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0


async def test_gives_a_child_its_environment(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "child", "assert os.environ['COLOR'] == 'green'; " + WAIT)
    child = Child(name="child", command=lives.child.command, environment={"COLOR": "green"})
    supervisor = asyncio.create_task(Supervisor([[child]], backoff=QUICK).run())
    await lives.until_started()

    os.kill(os.getpid(), signal.SIGTERM)

    assert await supervisor == 0
    assert len(lives.pids) == 1


def request(request_id: str, max_tokens: int) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens)
    return EngineRequest(request_id=request_id, prompt_token_ids=(1,), sampling=sampling)


@pytest.fixture
async def supervised(tmp_path: Path) -> AsyncIterator[EngineClient]:
    """A client of an engine process that a supervisor keeps alive."""
    socket_path = tmp_path / "engine.sock"
    child = Child(
        name="engine",
        command=counting_command(socket_path, {"step_s": 0.001}),
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    supervisor = asyncio.create_task(Supervisor([[child]], backoff=QUICK).run())
    client = EngineClient(socket_path)
    yield client
    await client.aclose()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await supervisor == 0


async def test_an_engine_that_is_killed_is_back_for_the_next_request(
    supervised: EngineClient, caplog: pytest.LogCaptureFixture
) -> None:
    streams = [supervised.stream([request(f"{i}", max_tokens=90_000)]) for i in range(3)]
    for stream in streams:
        await anext(stream)

    (pid,) = re.findall(r"engine started, pid (\d+)", caplog.text)
    os.kill(int(pid), signal.SIGKILL)

    for stream in streams:
        with pytest.raises(StreamInterrupted):
            await read(stream)
    async with aclosing(supervised.stream([request("next", max_tokens=3)])) as batches:
        assert len([output async for batch in batches for output in batch]) == 3


async def read(stream: AsyncGenerator[list[Output], None]) -> None:
    async for _ in stream:
        pass


async def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """P-PORT: no orphan process."""
    engine = Lives(tmp_path, "engine", WAIT)
    script = (
        "import asyncio; from gateway.supervisor import *; "
        f"asyncio.run(Supervisor([[Child(name='engine', command={engine.child.command!r})]]).run())"
    )
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=REPOSITORY)
    pid = await engine.until_started()

    supervisor.kill()
    await supervisor.wait()

    await until(lambda: not is_alive(pid))
