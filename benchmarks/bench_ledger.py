"""What admission costs: a lease of four claims reserved and settled, in each limit store.

The stores take turns request by request, so that a busy machine slows all alike. Redis is a
`valkey-server` of this machine behind a Unix socket; its round trips are the times that it has read
something. Then, of redis: 64 requests at once, and a step that reaps as many leases as one may.

    python -m benchmarks.bench_ledger --requests 5000

On 2 shared, busy cores, p50 and p99: memory 58 and 120 us, sqlite 420 to 450 and 4500 to 5300,
redis 620 to 640 and 1700 to 5000, with 2.00 round trips a request. Of sqlite's, 180 to 240 are
spent in its thread (its 22 statements take 130, of which two commits 53) and 30 to 40 on each of
the two hops to it; the rest is two threads on a busy machine. 64 at once on redis: p50 24 ms. To
reap 100 leases in one step: 2 to 4 ms of the server's time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from redis.asyncio import Redis

from gateway.stores.base import Claim, Dimension, Granted, LimitStore
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import MAX_TIDIED, RedisStore
from gateway.stores.sqlite import SqliteStore
from tests.valkey import serving_valkey

NUM_TENANTS = 50
TTL_S = 30.0
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
    started_s = time.perf_counter()
    outcome = await store.reserve(f"lease-{number}", claims_of(number % NUM_TENANTS), TTL_S)
    settled = await store.settle(f"lease-{number}", 200)
    took_us = (time.perf_counter() - started_s) * 1e6
    assert isinstance(outcome, Granted)
    assert settled
    return took_us


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
        samples: dict[str, list[float]] = {name: [] for name in stores}
        before = await num_reads(server)
        for number in range(num_requests):
            for name, store in stores.items():
                samples[name].append(await request(store, number))
        reads = await num_reads(server) - before - 1
        for name, samples_us in samples.items():
            print(f"{name:8}{spread(samples_us)}")
        print(f"redis   {reads / num_requests:.2f} round trips a request")
        await crowd(redis, server)


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


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, serving_valkey(Path(directory)) as server:
        asyncio.run(run(arguments.requests, Path(directory), server.url))


if __name__ == "__main__":
    main()
