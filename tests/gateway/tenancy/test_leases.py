"""The lease around a request: one end, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from gateway.errors import InvalidRequest, Overloaded, RateLimited
from gateway.stores.base import Charge, Claim, Granted, Refused, Spend, StoreError
from gateway.stores.memory import MemoryStore
from gateway.tenancy.leases import Lease, Leases
from tests.clock import FakeClock
from tests.contracts.stores import requests, slots, tokens

CLAIMS = (requests(10), tokens(1000, 400), slots(2))


class UnsteadyStore(MemoryStore):
    """A memory store that can be made to fail, or to keep its caller waiting."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.failing = False
        self._reached = asyncio.Event()
        self._open = asyncio.Event()
        self.go_on()

    def pause(self) -> None:
        """Hold every call from here on, until `go_on`."""
        self._reached.clear()
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def paused(self) -> None:
        """Until a call is being held."""
        await self._reached.wait()

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        self._fail()
        outcome = await super().reserve(lease_id, claims, ttl_s)
        await self._wait()
        return outcome

    async def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        self._fail()
        return await super().extend(lease_ids, ttl_s)

    async def settle(
        self, lease_id: str, spend: Spend, record: bytes = b""
    ) -> tuple[Charge, ...] | None:
        await self._wait()
        self._fail()
        return await super().settle(lease_id, spend, record)

    def _fail(self) -> None:
        if self.failing:
            raise StoreError("connection lost")

    async def _wait(self) -> None:
        self._reached.set()
        await self._open.wait()


class Beat:
    """A sleep that ends when told, for the heartbeat."""

    def __init__(self) -> None:
        self.asleep = asyncio.Event()
        self._wake = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asleep.set()
        await self._wake.wait()
        self._wake.clear()

    async def once(self) -> None:
        """Let one beat happen, to its end."""
        await self.asleep.wait()
        self.asleep.clear()
        self._wake.set()
        await self.asleep.wait()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def beat() -> Beat:
    return Beat()


@pytest.fixture
def store(clock: FakeClock) -> UnsteadyStore:
    return UnsteadyStore(clock)


@pytest.fixture
async def leases(store: UnsteadyStore, beat: Beat) -> AsyncIterator[Leases]:
    async with Leases(store, ttl_s=30.0, heartbeat_s=10.0, sleep=beat) as leases:
        yield leases


def spent(tokens: int) -> Spend:
    return Spend(input_tokens=0, output_tokens=tokens, cost_micros=0)


async def used_tokens(store: MemoryStore) -> dict[str, tuple[int, int]]:
    return {one.counter.split("/")[2]: (one.used, one.reserved) for one in await store.usage()}


async def test_a_finished_request_is_charged_what_it_used(
    leases: Leases, store: UnsteadyStore
) -> None:
    """Cases Q-STREAM-TPM and Q-CHARGE-ONE."""
    async with leases.acquire("a", CLAIMS) as lease:
        assert [state.remaining for state in lease.states] == [9, 600, 1]
        lease.spend = spent(20)
        lease.spend = spent(35)
    assert await used_tokens(store) == {"requests": (1, 0), "tokens": (35, 0)}


async def test_a_request_no_backend_took_costs_nothing(
    leases: Leases, store: UnsteadyStore
) -> None:
    with pytest.raises(LookupError):
        async with leases.acquire("a", CLAIMS):
            raise LookupError("no backend")
    assert await store.usage() == ()


async def test_a_request_that_used_no_tokens_is_still_a_request(
    leases: Leases, store: UnsteadyStore
) -> None:
    async with leases.acquire("a", CLAIMS) as lease:
        lease.spend = spent(0)
    assert await used_tokens(store) == {"requests": (1, 0)}


async def test_a_failing_request_is_charged_what_it_had_used(
    leases: Leases, store: UnsteadyStore
) -> None:
    async def request() -> None:
        async with leases.acquire("a", CLAIMS) as lease:
            lease.spend = spent(12)
            raise ConnectionError("engine died")

    with pytest.raises(ConnectionError, match="engine died"):
        await request()
    assert await used_tokens(store) == {"requests": (1, 0), "tokens": (12, 0)}


async def test_a_cancelled_request_is_charged_what_it_had_used(
    leases: Leases, store: UnsteadyStore
) -> None:
    """Case Q-CANCEL-CHARGE: prompt and tokens so far; the rest of the reservation comes back."""
    running = asyncio.Event()

    async def request() -> None:
        async with leases.acquire("a", CLAIMS) as lease:
            lease.spend = spent(25)
            running.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await used_tokens(store) == {"requests": (1, 0), "tokens": (25, 0)}


async def test_cancelling_while_it_ends_does_not_lose_the_end(
    leases: Leases, store: UnsteadyStore
) -> None:
    """Case Q-CANCEL-CHARGE."""

    async def request() -> None:
        async with leases.acquire("a", CLAIMS) as lease:
            lease.spend = spent(25)
            store.pause()

    task = asyncio.create_task(request())
    await store.paused()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    closing = asyncio.create_task(leases.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    assert (await used_tokens(store))["tokens"] == (0, 400)
    store.go_on()
    await closing
    assert await used_tokens(store) == {"requests": (1, 0), "tokens": (25, 0)}


async def test_cancelling_while_it_reserves_gives_back_what_was_granted(
    leases: Leases, store: UnsteadyStore
) -> None:
    async def request() -> None:
        async with leases.acquire("a", CLAIMS):
            pytest.fail("the request was cancelled before it was admitted")

    store.pause()
    task = asyncio.create_task(request())
    await store.paused()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.usage() == ()


async def test_closing_a_stream_early_ends_its_lease(leases: Leases, store: UnsteadyStore) -> None:
    """Case Q-CANCEL-CHARGE: the client hung up, so the generator is closed where it stands."""

    async def stream() -> AsyncGenerator[int]:
        async with leases.acquire("a", CLAIMS) as lease:
            for count in range(1, 200):
                lease.spend = spent(count)
                yield count

    events = stream()
    assert [await anext(events) for _ in range(5)] == [1, 2, 3, 4, 5]
    await events.aclose()
    assert await used_tokens(store) == {"requests": (1, 0), "tokens": (5, 0)}


async def test_a_refusal_is_raised_and_leaves_nothing_behind(
    leases: Leases, store: UnsteadyStore
) -> None:
    """Case Q-REJECT-CONSUMES."""
    async with leases.acquire("a", (requests(10), slots(1))) as lease:
        lease.spend = spent(1)
        with pytest.raises(RateLimited) as caught:
            async with leases.acquire("b", (requests(10), slots(1))):
                pytest.fail("there was no slot left")
        assert caught.value.dimension == "concurrency"
    assert await used_tokens(store) == {"requests": (1, 0)}


async def test_a_request_larger_than_its_limit_is_invalid(leases: Leases) -> None:
    with pytest.raises(
        InvalidRequest, match="holds 1000 per minute; shorten it or lower max_tokens"
    ):
        async with leases.acquire("a", (tokens(1000, 1001),)):
            pytest.fail("it can never be admitted")


async def test_nobody_is_served_uncounted_when_the_store_fails(
    leases: Leases, store: UnsteadyStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.failing = True
    with pytest.raises(Overloaded, match="limits cannot be checked"):
        async with leases.acquire("a", CLAIMS):
            pytest.fail("it was not reserved")
    assert "connection lost" in caplog.text


async def test_a_store_failing_at_the_end_is_not_the_clients_problem(
    leases: Leases, store: UnsteadyStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with leases.acquire("a", CLAIMS) as lease:
        lease.spend = spent(77)
        store.failing = True
    assert leases.unsettled == 1
    assert "77 tokens not charged" in caplog.text
    clock.advance(30.0)
    assert await store.usage() == ()


async def test_the_heartbeat_keeps_a_long_request_alive(
    leases: Leases, store: UnsteadyStore, clock: FakeClock, beat: Beat
) -> None:
    async with leases.acquire("long", CLAIMS) as lease:
        for _ in range(5):
            clock.advance(20.0)
            await beat.once()
        lease.spend = spent(300)
    assert leases.unsettled == 0
    await store.reserve("probe", (requests(10),), 30.0)
    assert await store.extend(("long",), 30.0) == {"long"}


async def test_the_heartbeat_survives_a_failing_store(
    leases: Leases, store: UnsteadyStore, clock: FakeClock, beat: Beat
) -> None:
    async with leases.acquire("a", CLAIMS) as lease:
        store.failing = True
        clock.advance(10.0)
        await beat.once()
        store.failing = False
        clock.advance(10.0)
        await beat.once()
        clock.advance(20.0)
        lease.spend = spent(5)
    assert leases.unsettled == 0


async def test_a_lease_that_expired_all_the_same_is_told_of(
    leases: Leases, clock: FakeClock, beat: Beat, caplog: pytest.LogCaptureFixture
) -> None:
    async with leases.acquire("a", CLAIMS) as lease:
        clock.advance(30.0)
        await beat.once()
        lease.spend = spent(5)
    assert "lease a expired while its request was running" in caplog.text
    assert leases.unsettled == 1


async def test_closing_twice_or_before_entering_is_fine(
    leases: Leases, store: UnsteadyStore
) -> None:
    await leases.aclose()
    await leases.aclose()
    await Leases(store).aclose()
    assert leases.unsettled == 0


@pytest.mark.parametrize("seed", range(5))
async def test_however_requests_end_the_books_balance(
    leases: Leases, store: UnsteadyStore, seed: int
) -> None:
    """Case Q-RESERVE-STREAM: settled is what was used, and nothing stays reserved."""
    draw = random.Random(seed)
    held: list[Lease] = []

    async def request(lease_id: str) -> None:
        async with leases.acquire(lease_id, (requests(1000), tokens(10**6, 200))) as lease:
            held.append(lease)
            for count in range(draw.randint(0, 5)):
                lease.spend = spent(count)
                await asyncio.sleep(0)
            if draw.random() < 0.2:
                raise ConnectionError("engine died")

    tasks = [asyncio.create_task(request(f"lease-{i}")) for i in range(50)]
    for task in tasks:
        await asyncio.sleep(0)
        if draw.random() < 0.3:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await leases.aclose()
    used = [lease.spend.output_tokens for lease in held if lease.spend is not None]
    assert await used_tokens(store) == {"requests": (len(used), 0), "tokens": (sum(used), 0)}
