"""What stores that several processes share must do, with processes: memory is none of them."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import uuid
from pathlib import Path

import pytest

from gateway.stores.base import LimitStore
from gateway.stores.redis import RedisStore
from gateway.stores.sqlite import SqliteStore
from tests.clock import FakeClock
from tests.contracts.stores import refused, slots
from tests.valkey import ValkeyServer

ROOT = Path(__file__).parents[2]
SHARED_KINDS = ("sqlite", "redis")
BEGIN_S = 1000.0
TTL_S = 30.0

PROCESS = f"""
import asyncio, itertools, os, signal, sys
from gateway.stores.base import Granted
from tests.contracts.stores import slots, spent, tokens
from tests.contracts.test_store_processes import opened_at

async def main(kind, place, name):
    store = await opened_at(kind, place, lambda: {BEGIN_S})
    if name == "killed":
        await store.reserve("lost", (tokens(100, 40), slots(1)), {TTL_S})
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("charging"):
        return await charge_until_killed(store, name)
    outcomes = await asyncio.gather(
        *(store.reserve(f"{{name}}-{{i}}", (tokens(100, 7),), {TTL_S}) for i in range(50))
    )
    await store.aclose()
    sys.stdout.write(str(sum(isinstance(outcome, Granted) for outcome in outcomes)))

async def charge_until_killed(store, name):
    sys.stdout.write("ready")
    sys.stdout.flush()
    for number in itertools.count():
        await store.reserve(f"{{name}}-{{number}}", (tokens(10**9, 7, window_s=86_400),), {TTL_S})
        await store.settle(f"{{name}}-{{number}}", spent(3), b"3")

asyncio.run(main(*sys.argv[1:]))
"""


async def opened_at(kind: str, place: str, clock: FakeClock) -> LimitStore:
    """A store that another process may have open: a path, or a URL and a prefix."""
    if kind == "sqlite":
        return await SqliteStore.open(Path(place), clock=clock)
    url, _, prefix = place.partition(" ")
    return RedisStore.open(url, prefix=prefix, clock=clock)


async def run_process(kind: str, place: str, name: str) -> tuple[int | None, bytes]:
    """Run the program above; its exit code and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS, kind, place, name),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode, output


@pytest.fixture(params=SHARED_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path, valkey: ValkeyServer) -> str:
    if kind == "sqlite":
        return str(tmp_path / "home" / "limits.db")
    return f"{valkey.url} {uuid.uuid4().hex}"


async def test_three_processes_admit_together_what_one_may(kind: str, place: str) -> None:
    """Case Q-TPM-RACE: 150 times 7 tokens on 100 a minute; they also create the store at once."""
    ended = await asyncio.gather(*(run_process(kind, place, f"process-{i}") for i in range(3)))
    assert [code for code, _ in ended] == [0, 0, 0]
    assert sum(int(output) for _, output in ended) == 14


async def test_a_killed_process_loses_its_lease_when_it_expires(kind: str, place: str) -> None:
    code, _ = await run_process(kind, place, "killed")
    assert code == -signal.SIGKILL
    clock = FakeClock(BEGIN_S + TTL_S - 1.0)
    store = await opened_at(kind, place, clock)
    assert (await refused(store, slots(1))).by == slots(1)
    assert sum(usage.reserved for usage in await store.usage()) == 41
    clock.advance(1.0)
    assert await store.usage() == ()
    await store.aclose()


async def test_a_process_killed_at_any_moment_leaves_no_charge_without_a_record(
    kind: str, place: str
) -> None:
    """Case Q-COUNTER-DOUBLE: nor a record without a charge, in three processes killed in turn."""
    for number in range(3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROCESS, kind, place, f"charging-{number}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readexactly(len("ready"))
        await asyncio.sleep(random.Random(number).uniform(0.01, 0.1))
        process.kill()
        await process.wait()
    store = await opened_at(kind, place, FakeClock(BEGIN_S + TTL_S))
    (counted,) = await store.usage()
    entries = await store.collect(10**6, 30.0)
    assert counted.used == sum(int(entry.record) for entry in entries) > 0
    assert counted.reserved == 0
    await store.aclose()
