"""What admission costs: a lease of four claims reserved, and settled with its record.

The stores take turns, `IN_TURN` requests each, so that a busy machine slows all alike. So does
`bare`: the same rows read and written by SQLite alone, without arithmetic and without a store
around it, the least that any could take. Redis is a `valkey-server` of this machine behind a Unix
socket; its round trips are the times that it has read something. Then, of redis: 64 requests at
once, and a step that reaps as many leases as one may; of sqlite: how long a step holds the event
loop, alone and while another process hammers the same file.

    python -m benchmarks.bench_ledger --requests 5000
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from gateway.stores.base import Claim, Dimension, Granted, LimitStore, Spend
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import MAX_TIDIED, RedisStore
from gateway.stores.sqlite import SqliteStore
from gateway.stores.sqlite_ledger import PAGE_BYTES
from tests.valkey import serving_valkey

NUM_TENANTS = 50
TTL_S = 30.0
SPEND = Spend(input_tokens=150, output_tokens=50, cost_micros=0)
RECORD = b"r" * 420  # as long as a usage record
IN_TURN = 100
GOAL_US = 150  # of sqlite, at the median
EXPIRY_S = 2.0  # longer than it takes to make all that expire


def claims_of(tenant: int, *, cost: int = 500) -> tuple[Claim, ...]:
    """Requests and tokens a minute, tokens an hour, concurrency; nobody reaches them."""
    asked = (
        ("rpm", Dimension.REQUESTS, 60, 1),
        ("tpm", Dimension.TOKENS, 60, cost),
        ("tph", Dimension.TOKENS, 3600, cost),
        ("slots", Dimension.CONCURRENCY, 0, 1),
    )
    return tuple(
        Claim(
            limit=limit,
            scope=f"tenant:{tenant}",
            dimension=dimension,
            amount=10**9,
            window_s=window_s,
            cost=cost,
        )
        for limit, dimension, window_s, cost in asked
    )


async def request(store: LimitStore, number: int) -> float:
    """Reserve and settle; the microseconds it took."""
    claims = claims_of(number % NUM_TENANTS)
    started_s = time.perf_counter()
    outcome = await store.reserve(f"lease-{number}", claims, TTL_S)
    charges = await store.settle(f"lease-{number}", SPEND, RECORD)
    took_us = (time.perf_counter() - started_s) * 1e6
    assert isinstance(outcome, Granted)
    assert charges is not None
    return took_us


class Bare:
    """SQLite alone, on four counters, a lease and a record."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript(
            f"PRAGMA page_size = {PAGE_BYTES}; PRAGMA journal_mode = WAL;"
            "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0;"
            "CREATE TABLE windows (counter TEXT PRIMARY KEY, used INT, reserved INT) WITHOUT ROWID;"
            "CREATE TABLE leases (lease_id TEXT PRIMARY KEY, held BLOB) WITHOUT ROWID;"
            "CREATE TABLE outbox (number INTEGER PRIMARY KEY, record BLOB)"
        )

    def request(self, number: int) -> float:
        """Both steps; the microseconds they took."""
        names = [f"tenant:{number % NUM_TENANTS}/{one}/60" for one in ("a", "b", "c", "d")]
        db, lease_id = self._db, f"lease-{number}"
        started_s = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.execute("SELECT * FROM windows WHERE counter IN (?, ?, ?, ?)", names).fetchall()
        db.execute("INSERT INTO leases VALUES (?, ?)", (lease_id, RECORD[:250]))
        db.executemany(
            "INSERT INTO windows VALUES (?, 0, 500)"
            " ON CONFLICT DO UPDATE SET reserved = reserved + excluded.reserved",
            [(name,) for name in names],
        )
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM leases WHERE lease_id = ? RETURNING held", (lease_id,)).fetchone()
        db.executemany(
            "UPDATE windows SET reserved = reserved - 500, used = used + 200 WHERE counter = ?",
            [(name,) for name in names],
        )
        db.execute("INSERT INTO outbox VALUES (NULL, ?)", (RECORD,))
        db.execute("COMMIT")
        took_us = (time.perf_counter() - started_s) * 1e6
        if number % 500 == 0:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return took_us

    def close(self) -> None:
        self._db.close()


async def num_reads(server: Redis) -> int:
    """How often the server has read something from somebody."""
    return int((await server.info("stats"))["total_reads_processed"])


def spread(samples_us: Sequence[float]) -> str:
    """For a person."""
    cuts = statistics.quantiles(samples_us, n=1000)
    return f"p50 {cuts[499]:6.0f}  p99 {cuts[989]:6.0f}  p99.9 {cuts[998]:6.0f} us"


async def run(num_requests: int, directory: Path, url: str) -> None:
    """All of it, printed."""
    async with AsyncExitStack() as stack:
        redis = RedisStore.open(url)
        stores: dict[str, LimitStore] = {
            "memory": MemoryStore(clock=time.monotonic),
            "sqlite": await SqliteStore.open(directory / "limits.db", clock=time.monotonic),
            "redis": redis,
        }
        server = Redis.from_url(url)
        stack.push_async_callback(server.aclose)
        for store in stores.values():
            stack.push_async_callback(store.aclose)
            await request(store, 0)
        samples: dict[str, list[float]] = {name: [] for name in ("bare", *stores)}
        bare = Bare(directory / "bare.db")
        stack.callback(bare.close)
        before = await num_reads(server)
        for first in range(0, num_requests, IN_TURN):
            numbers = range(first, first + IN_TURN)
            samples["bare"] += [bare.request(number) for number in numbers]
            for name, store in stores.items():
                samples[name] += [await request(store, number) for number in numbers]
        reads = await num_reads(server) - before - 1
        for name, samples_us in samples.items():
            print(f"{name:8}{spread(samples_us)}")
        bare_us, sqlite_us = (statistics.median(samples[name]) for name in ("bare", "sqlite"))
        print(f"ratio sqlite_us {sqlite_us:.0f} goal <= {GOAL_US}")
        print(f"ratio sqlite_over_bare {sqlite_us / bare_us:.2f}")
        print(f"ratio redis_round_trips {reads / num_requests:.2f} goal <= 2")
        await crowd(redis, server)
        await beside_another(stores["sqlite"], directory, num_requests)


async def crowd(store: RedisStore, server: Redis) -> None:
    """What redis does with many requests at once, and with many expired leases."""
    samples_us: list[float] = []
    for first in range(0, 64 * 30, 64):
        samples_us += await asyncio.gather(
            *(request(store, number) for number in range(first, first + 64))
        )
    print(f"redis   {spread(samples_us)}, 64 at once")
    for number in range(MAX_TIDIED):
        await store.reserve(f"expired-{number}", claims_of(number), EXPIRY_S)
    await asyncio.sleep(EXPIRY_S)
    await server.config_set("slowlog-log-slower-than", 0)
    await store.release("none")
    took_us = max(one["duration"] for one in await server.slowlog_get(10))
    print(f"redis   {took_us} us of the server's time to reap {MAX_TIDIED} leases in one step")


async def beside_another(store: LimitStore, directory: Path, num_requests: int) -> None:
    """How long the loop is held by a step, with another process at the same file."""
    for num_others in (0, 1):
        processes = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.bench_ledger", "--hammer", str(directory))
            )
            for _ in range(num_others)
        ]
        watch = Watch()
        watching = asyncio.create_task(watch.run())
        took_us: list[float] = []
        for number in range(num_requests):
            took_us.append(await request(store, 10**6 * (num_others + 1) + number))
            await asyncio.sleep(0)
        watching.cancel()
        for process in processes:
            process.kill()
            await process.wait()
        print(f"sqlite  {spread(took_us)}, {num_others} other processes at the file")
        print(f"        {spread(watch.held_us)}  max {max(watch.held_us):6.0f}: the loop was held")


class Watch:
    """Looks at the clock whenever the event loop comes round."""

    def __init__(self) -> None:
        self.held_us: list[float] = []

    async def run(self) -> None:
        last_s = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now_s = time.perf_counter()
            self.held_us.append((now_s - last_s) * 1e6)
            last_s = now_s


async def hammer(directory: Path) -> None:
    """Reserve and settle until killed."""
    store = await SqliteStore.open(directory / "limits.db", clock=time.monotonic)
    for number in itertools.count(10**9):
        await request(store, number)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--hammer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hammer:
        asyncio.run(hammer(arguments.hammer))
        return
    with tempfile.TemporaryDirectory() as directory, serving_valkey(Path(directory)) as server:
        asyncio.run(run(arguments.requests, Path(directory), server.url))


if __name__ == "__main__":
    main()
