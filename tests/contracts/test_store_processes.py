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
HOLD_S = 30.0
ROUNDS = 3

PROCESS = f"""
import asyncio, itertools, os, signal, sys
from gateway.stores.base import Granted
from tests.contracts.stores import slots, spent, tokens
from tests.contracts.test_store_processes import opened_at

async def main(kind, place, name, written=""):
    store = await opened_at(kind, place, lambda: {BEGIN_S})
    if name == "killed":
        await store.reserve("lost", (tokens(100, 40), slots(1)), {TTL_S})
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("charging"):
        return await charge_until_killed(store, name)
    if name == "carrying":
        return await carry_until_killed(store, written)
    outcomes = await asyncio.gather(
        *(store.reserve(f"{{name}}-{{i}}", (tokens(100, 7),), {TTL_S}) for i in range(50))
    )
    await store.aclose()
    sys.stdout.write(str(sum(isinstance(outcome, Granted) for outcome in outcomes)))

async def charge_until_killed(store, name):
    print("ready", flush=True)
    for number in itertools.count():
        lease_id = f"{{name}}-{{number}}"
        await store.reserve(lease_id, (tokens(10**9, 7, window_s=86_400),), {TTL_S})
        await store.settle(lease_id, spent(3), lease_id.encode())

async def carry_until_killed(store, written):
    print("ready", flush=True)
    with open(written, "ab", buffering=0) as file:
        while True:
            entries = await store.collect(20, {HOLD_S})
            file.write(b"".join(entry.record + b"\\n" for entry in entries))
            await store.forget(tuple(entry.entry_id for entry in entries))

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


async def start(kind: str, place: str, *arguments: str) -> asyncio.subprocess.Process:
    """Begin the program above; it is at work."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS, kind, place, *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_processes_killed_at_any_moment_leave_no_charge_without_a_record(
    kind: str, place: str, tmp_path: Path, seed: int
) -> None:
    """Case Q-COUNTER-DOUBLE: nor a record without a charge; two charge and one carries records."""
    written = tmp_path / "written"
    processes = await asyncio.gather(
        start(kind, place, f"charging-{seed}-a"),
        start(kind, place, f"charging-{seed}-b"),
        start(kind, place, "carrying", str(written)),
    )
    rng = random.Random(seed)
    for process in rng.sample(processes, len(processes)):
        await asyncio.sleep(rng.uniform(0.01, 0.1))  # they work; what is asserted knows no time
        process.kill()
        await process.wait()
    store = await opened_at(kind, place, FakeClock(BEGIN_S + max(TTL_S, HOLD_S)))
    (counted,) = await store.usage()
    left = [entry.record for entry in await store.collect(10**6, HOLD_S)]
    records = {*left, *written.read_bytes().split()}
    assert len(left) == len(set(left))
    assert (counted.used, counted.reserved) == (3 * len(records), 0)
    assert records
    await store.aclose()
