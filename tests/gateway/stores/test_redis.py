"""What only the redis store promises: the shared arithmetic in Lua, servers that come and go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from redis.asyncio import Redis
from redis.crc import key_slot

from gateway.stores.base import Claim, Granted, LimitStore, StoreError
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import MAX_TIDIED, RedisStore
from tests.clock import FakeClock
from tests.contracts.stores import (
    TTL_S,
    extend,
    granted,
    requests,
    settle,
    slots,
    tokens,
)
from tests.valkey import ValkeyServer, serving_valkey

MONTH_S = 30 * 86_400
LARGEST = 10**15  # of an amount, in a policy
CANARY = "pw-CANARY123"


@pytest.fixture
async def client(valkey: ValkeyServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(valkey.url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(valkey: ValkeyServer, clock: FakeClock) -> AsyncIterator[RedisStore]:
    store = RedisStore.open(valkey.url, prefix=uuid.uuid4().hex, clock=clock)
    yield store
    await store.aclose()


# --- the arithmetic ---------------------------------------------------------------------------

AMOUNTS = st.one_of(st.integers(1, 60), st.integers(1, LARGEST))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "settle", "release", "extend", "wait"]),
        st.integers(0, 5),  # which lease
        st.floats(0, 1),  # a share of the amount, or of the window
    ),
    max_size=30,
)


def claims_of(amount: int, window_s: int, share: float) -> tuple[Claim, ...]:
    cost = min(int(share * amount) + 1, amount)
    return (tokens(amount, cost, window_s=window_s), requests(4, window_s=7), slots(3))


async def take(
    store: LimitStore, step: str, lease_id: str, share: float, amount: int, window_s: int
) -> object:
    match step:
        case "reserve":
            try:
                return await store.reserve(lease_id, claims_of(amount, window_s, share), TTL_S)
            except ValueError as error:
                return str(error)
        case "settle":
            return await settle(store, lease_id, int(share * amount))
        case "release":
            return await store.release(lease_id)
        case _:
            return await extend(store, lease_id, TTL_S)


@settings(max_examples=60, deadline=None)
@given(
    amount=AMOUNTS,
    window_s=st.sampled_from([1, 60, 3600, 86_400, MONTH_S]),
    begin_us=st.integers(10**9, 10**15),
    steps=STEPS,
)
def test_every_answer_is_that_of_the_shared_arithmetic(
    valkey: ValkeyServer,
    amount: int,
    window_s: int,
    begin_us: int,
    steps: list[tuple[str, int, float]],
) -> None:
    """Grants, refusals, waits and what is left, to the microsecond and the token."""

    async def scenario() -> None:
        clock = FakeClock(begin_us / 10**6)
        theirs = MemoryStore(clock=clock)
        ours = RedisStore.open(valkey.url, prefix=uuid.uuid4().hex, clock=clock)
        for step, pick, share in steps:
            if step == "wait":
                clock.advance(share * window_s * 1.5)
            else:
                both = [
                    await take(store, step, f"lease-{pick}", share, amount, window_s)
                    for store in (ours, theirs)
                ]
                assert both[0] == both[1]
            assert await ours.usage() == await theirs.usage()
        await ours.aclose()

    asyncio.run(scenario())


async def test_a_month_of_the_largest_amount_is_counted_to_the_token(
    store: RedisStore, clock: FakeClock
) -> None:
    """The products are near 2^91, where doubles are 2^38 apart."""
    clock.now_s = 40.0 * MONTH_S
    await granted(store, "a", tokens(LARGEST, LARGEST, window_s=MONTH_S))
    await settle(store, "a", LARGEST)
    clock.advance(MONTH_S + MONTH_S / 3)
    room = LARGEST - (2 * LARGEST + 2) // 3  # two thirds still count, rounded up
    too_many = await store.reserve("b", (tokens(LARGEST, room + 1, window_s=MONTH_S),), TTL_S)
    assert not isinstance(too_many, Granted)
    outcome = await granted(store, "b", tokens(LARGEST, room, window_s=MONTH_S))
    assert outcome.states[0].remaining == 0


async def test_more_expired_leases_than_one_step_reaps_all_count_no_more(
    store: RedisStore, clock: FakeClock
) -> None:
    for i in range(2 * MAX_TIDIED + 5):
        await granted(store, f"lease-{i}", tokens(10**6, 3), ttl_s=30.0 + i / 1000)
    clock.advance(31.0)
    assert not await settle(store, f"lease-{2 * MAX_TIDIED + 4}", 3)
    assert await store.usage() == ()


async def test_counters_that_count_no_more_leave_the_server(
    store: RedisStore, clock: FakeClock, client: Redis
) -> None:
    await granted(store, "a", requests(10), tokens(1000, 5), slots(1))
    await settle(store, "a", 5)
    clock.advance(120.0)
    await store.usage()
    assert [key async for key in client.scan_iter(f"{keys_of(store)}:*")] == [
        f"{keys_of(store)}:clock"
    ]


def keys_of(store: RedisStore) -> str:
    return store._keys[0].rpartition(":")[0]


# --- the server -------------------------------------------------------------------------------


async def test_a_request_takes_two_round_trips(tmp_path: Path) -> None:
    with serving_valkey(tmp_path) as server:
        watcher = Redis.from_url(server.url, decode_responses=True)
        store = RedisStore.open(server.url)
        await store.usage()  # connects, and loads the script
        before = await num_reads(watcher)
        await granted(store, "a", requests(10), tokens(1000, 5), slots(1))
        await settle(store, "a", 5)
        assert await num_reads(watcher) - before - 1 == 2  # one is the watcher's
        await store.aclose()
        await watcher.aclose()


async def num_reads(watcher: Redis) -> int:
    """How often the server has read something from somebody."""
    return int((await watcher.info("stats"))["total_reads_processed"])


async def test_without_a_clock_the_servers_time_is_the_stores(
    valkey: ValkeyServer, client: Redis
) -> None:
    store = RedisStore.open(valkey.url, prefix=uuid.uuid4().hex)
    before_s, _ = await client.time()
    await granted(store, "a", slots(1), ttl_s=0.05)
    now_us = int(await client.hget(store._keys[0], "now") or 0)
    after_s, _ = await client.time()
    assert before_s <= now_us / 10**6 <= after_s + 1
    async with asyncio.timeout(30):
        while await store.usage():
            await asyncio.sleep(0.01)
    await store.aclose()


def test_all_keys_lie_in_one_slot_of_a_cluster(store: RedisStore) -> None:
    assert len({key_slot(key.encode()) for key in store._keys}) == 1


async def test_a_flushed_script_is_loaded_again(store: RedisStore, client: Redis) -> None:
    await granted(store, "a", tokens(100, 30))
    await client.script_flush()
    assert await settle(store, "a", 20)
    assert [usage.used for usage in await store.usage()] == [20]


async def test_a_server_that_is_killed_fails_loudly_and_one_that_is_back_is_found_again(
    tmp_path: Path,
) -> None:
    with serving_valkey(tmp_path) as server:
        store = RedisStore.open(server.url)
        await asyncio.gather(*(store.check() for _ in range(8)))
        server.process.kill()
        server.process.wait()
        with pytest.raises(StoreError, match=r"valkey\.sock failed: .*see that a Redis or Valkey"):
            await store.reserve("a", (tokens(100, 30),), TTL_S)
    with serving_valkey(tmp_path):
        await granted(store, "a", tokens(100, 30))
        assert await settle(store, "a", 20)
    await store.aclose()


async def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    """Paused for writes: it takes the connection, and never answers."""
    with serving_valkey(tmp_path) as server:
        store = RedisStore.open(f"{server.url}&socket_timeout=0.2")
        await granted(store, "a", tokens(100, 30))
        pausing = Redis.from_url(server.url)
        await pausing.client_pause(100_000, all=False)
        with pytest.raises(StoreError, match="TimeoutError"):
            await settle(store, "a", 20)
        await pausing.client_unpause()
        await granted(store, "b", tokens(100, 30))
        await pausing.aclose()
        await store.aclose()


async def test_a_cancelled_reservation_is_over_before_its_end_begins(
    store: RedisStore, client: Redis
) -> None:
    """Else a release would overtake it, and find nothing to release."""
    await client.client_pause(100_000, all=False)
    reserving = asyncio.create_task(store.reserve("a", (tokens(100, 30),), TTL_S))
    await asyncio.sleep(0)
    reserving.cancel()
    await client.client_unpause()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    assert await store.release("a")
    assert await store.usage() == ()


# --- passwords --------------------------------------------------------------------------------


async def test_a_password_opens_from_the_url_or_beside_it(tmp_path: Path) -> None:
    with serving_valkey(tmp_path, "--requirepass", CANARY) as server:
        for store in (
            RedisStore.open(f"{server.url}&password={CANARY}"),
            RedisStore.open(server.url, password=CANARY),
        ):
            await store.check()
            await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{CANARY}@127.0.0.1:1/0",
        f"rediss://user:{CANARY}@127.0.0.1:1/0",
        f"unix:///no/such.sock?db=0&password={CANARY}",
    ],
)
async def test_no_error_shows_the_password(url: str) -> None:
    """Case Q-KEY-IN-LOGS: nor does its cause, which a log would print too."""
    store = RedisStore.open(url)
    with pytest.raises(StoreError) as failed:
        await store.check()
    assert CANARY not in str(failed.value)
    assert failed.value.__suppress_context__
    await store.aclose()


async def test_a_server_that_echoes_the_password_is_not_quoted(tmp_path: Path) -> None:
    """Case Q-KEY-IN-LOGS: Redis names the arguments of a command it does not know."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = (await reader.read(1000)).decode().replace("\r\n", " ")
        writer.write(f"-ERR unknown command, with args beginning with: {said}\r\n".encode())
        await writer.drain()
        writer.close()

    path = tmp_path / "echo.sock"
    server = await asyncio.start_unix_server(echo, path)
    store = RedisStore.open(f"unix://{path}", password=CANARY)
    with pytest.raises(StoreError, match="args beginning with") as failed:
        await store.check()
    assert CANARY not in str(failed.value)
    await store.aclose()
    server.close()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{CANARY}/@host:1/0",
        f"redis://:{CANARY}@host:port/0",
        f"redis://:{CANARY}@host:1/limits",
        f"redis://:{CANARY}@host:1/0?sockettimeout=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(StoreError, match="URL of the limit store") as refused:
        RedisStore.open(url)
    assert CANARY not in str(refused.value)


async def test_a_url_may_set_options_of_the_client(valkey: ValkeyServer) -> None:
    store = RedisStore.open(f"{valkey.url}&max_connections=2&timeout=3&retry_on_timeout=no")
    await asyncio.gather(*(store.check() for _ in range(8)))
    await store.aclose()


def test_two_passwords_are_one_too_many() -> None:
    with pytest.raises(StoreError, match="in its URL and one beside it"):
        RedisStore.open("redis://:one@127.0.0.1/0", password="two")
