"""What the tests of limit stores share: opening each kind, and the claims they make."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.stores.base import Claim, Dimension, Granted, LimitStore, Period, Refused, Spend
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.sqlite import SqliteStore
from tests.clock import FakeClock
from tests.valkey import ValkeyServer

KINDS = ("memory", "sqlite", "redis")
TTL_S = 600.0  # longer than what a test lets pass, unless it is about expiry
MINUTE_START_S = 1_000_020.0  # a multiple of 60


@asynccontextmanager
async def opened(kind: str, clock: FakeClock, valkey: ValkeyServer) -> AsyncIterator[LimitStore]:
    """An empty store."""
    with tempfile.TemporaryDirectory() as directory:
        store: LimitStore
        if kind == "memory":
            store = MemoryStore(clock=clock)
        elif kind == "redis":
            store = RedisStore.open(valkey.url, prefix=uuid.uuid4().hex, clock=clock)
        else:
            store = await SqliteStore.open(Path(directory) / "limits.db", clock=clock)
        try:
            yield store
        finally:
            await store.aclose()


def spent(tokens: int) -> Spend:
    return Spend(input_tokens=0, output_tokens=tokens, cost_micros=0)


async def settle(store: LimitStore, lease_id: str, tokens: int) -> bool:
    """Whether the lease was alive."""
    return await store.settle(lease_id, spent(tokens)) is not None


async def extend(store: LimitStore, lease_id: str, ttl_s: float) -> bool:
    """Whether the lease is alive."""
    return not await store.extend((lease_id,), ttl_s)


def requests(amount: int, *, limit: str = "rpm", window_s: int = 60) -> Claim:
    return claim(Dimension.REQUESTS, limit=limit, amount=amount, window_s=window_s, cost=1)


def tokens(amount: int, cost: int, *, limit: str = "tpm", window_s: int = 60) -> Claim:
    return claim(Dimension.TOKENS, limit=limit, amount=amount, window_s=window_s, cost=cost)


def slots(amount: int) -> Claim:
    return claim(Dimension.CONCURRENCY, limit="slots", amount=amount)


def claim(
    dimension: Dimension,
    *,
    limit: str = "any",
    amount: int = 100,
    window_s: int = 0,
    cost: int = 1,
    period: Period | None = None,
) -> Claim:
    return Claim(
        limit=limit,
        scope="tenant:acme",
        dimension=dimension,
        amount=amount,
        window_s=window_s,
        cost=cost,
        period=period,
    )


async def granted(
    store: LimitStore, lease_id: str, *claims: Claim, ttl_s: float = TTL_S
) -> Granted:
    outcome = await store.reserve(lease_id, claims, ttl_s)
    assert isinstance(outcome, Granted)
    return outcome


async def refused(store: LimitStore, *claims: Claim) -> Refused:
    outcome = await store.reserve("refused", claims, TTL_S)
    assert isinstance(outcome, Refused)
    return outcome
