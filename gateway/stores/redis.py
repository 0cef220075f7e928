"""Limits in a Redis or Valkey server: for gateways on several hosts.

Every operation is one call of one script (`redis.lua`), which the server runs as one atomic step,
and one round trip: a request takes two, to reserve and to settle. The server's clock is the
store's. All keys carry one hash tag, so they lie in one slot of a cluster.

Nothing is sent twice, for a step whose answer is lost may have happened: a lease it made expires. A
lost connection is an error for who waits on it; the next operation connects again. What a server
remembers when it is restarted is for its own configuration to say (`docs/ledger.md`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.stores.base import (
    Charge,
    Claim,
    Dimension,
    Entry,
    Granted,
    Refused,
    Spend,
    StoreError,
    Usage,
)
from gateway.stores.window import (
    MICROSECONDS,
    Counts,
    Window,
    decide,
    hold,
    microseconds,
    summarise,
)

SCRIPT = Path(__file__).with_name("redis.lua").read_text(encoding="utf-8")
KEYS = ("clock", "used", "fading", "reserved", "leases", "expiries", "records", "outbox")

TIMEOUT_S = 1.0
"""For a connection, and for an answer, which takes 0.3 ms."""

WAIT_S = 5.0
"""For one of the connections: of 1,000 requests that come at once the last ends after 0.6 s."""

MAX_CONNECTIONS = 16
"""The server runs one script at a time, however many connections bring them."""

MAX_TIDIED = 100
"""Expired leases that one step reaps at most: 2 to 4 ms of the server's time with four claims."""

_Item = TypeVar("_Item")

_IN_USE = -1  # what the script says of a lease id
_NOT_FADED_US = 2**62


class RedisStore:
    """A `LimitStore`. Made by `open`."""

    def __init__(
        self,
        client: Redis,
        *,
        name: str,
        password: str | None,
        prefix: str,
        clock: Callable[[], float] | None,
    ) -> None:
        self._client = client
        self._name = name
        self._password = password
        self._script = client.register_script(SCRIPT)
        self._keys = [f"{{{prefix}}}:{key}" for key in KEYS]
        self._clock = clock

    @classmethod
    def open(
        cls,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "turnout",
        clock: Callable[[], float] | None = None,
    ) -> RedisStore:
        """Know where the server is; the first operation connects.

        url: `redis://host:port/db`, `rediss://…` or `unix:///path?db=0`. Its query may hold other
        options of redis-py, such as `ssl_ca_certs`.
        prefix: divides a server among installations; those that share it share their limits.
        clock: for tests alone, instead of the server's: seconds from any fixed point.

        Raises:
            StoreError: the URL cannot be read, or there are two passwords.
        """
        options = _options(url)
        if password is not None:
            if "password" in options:
                raise StoreError("the limit store has a password in its URL and one beside it")
            options["password"] = password
        pool = BlockingConnectionPool(**options)
        try:
            # This does not connect: it takes the options, or does not know one.
            pool.make_connection()  # type: ignore[no-untyped-call]
        except TypeError as error:
            raise StoreError(f"the URL of the limit store has a wrong option: {error}") from None
        return cls(
            Redis.from_pool(pool),
            name=_shown(url, options),
            password=options.get("password"),
            prefix=prefix,
            clock=clock,
        )

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        """See `LimitStore.reserve`.

        Raises:
            ValueError: the lease id is in use, or two claims name the same counter.
        """
        hold(claims, now_us=0)  # refuses claims that cannot see each other
        step = asyncio.ensure_future(
            self._run("reserve", lease_id, microseconds(ttl_s), *_arguments(claims))
        )
        try:
            now_us, verdict, *numbers = await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])  # or else the lease's end could overtake its beginning
            raise
        if verdict == _IN_USE:
            raise ValueError(f"lease id {lease_id!r} is in use")
        counts = [
            Counts(current=current, previous=previous, reserved=reserved)
            for current, previous, reserved in _groups(numbers, 3)
        ]
        outcome = decide(claims, counts, now_us)
        assert isinstance(outcome, Granted) == bool(verdict)
        return outcome

    async def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        """See `LimitStore.extend`."""
        return frozenset(await self._run("extend", microseconds(ttl_s), *lease_ids))

    async def settle(
        self, lease_id: str, spend: Spend, record: bytes = b""
    ) -> tuple[Charge, ...] | None:
        """See `LimitStore.settle`."""
        was_alive, *periods = await self._run("finish", lease_id, record, *_charges(spend))
        if not was_alive:
            return None
        return tuple(
            Charge(counter=counter, charged=charged, used=used)
            for counter, charged, used in _groups(periods, 3)
        )

    async def release(self, lease_id: str, record: bytes = b"") -> bool:
        """See `LimitStore.release`."""
        was_alive, *_ = await self._run("finish", lease_id, record)
        return bool(was_alive)

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """See `LimitStore.collect`."""
        items = await self._run("collect", most, microseconds(hold_s))
        return tuple(
            Entry(entry_id=entry_id, record=record.encode())
            for entry_id, record in _groups(items, 2)
        )

    async def forget(self, entry_ids: tuple[str, ...]) -> None:
        """See `LimitStore.forget`."""
        await self._run("forget", *entry_ids)

    async def usage(self) -> tuple[Usage, ...]:
        """See `LimitStore.usage`."""
        while True:
            now_us, num_untidy, used, reserved = await self._run("usage")
            if not num_untidy:  # else each step tidies up some of it
                return summarise(_windows(used, reserved), now_us)

    async def check(self) -> None:
        """See `LimitStore.check`."""
        await self._ask(self._client.ping())  # pyright: ignore[reportUnknownMemberType]

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._client.aclose(close_connection_pool=True)

    async def _run(self, step: str, *arguments: int | str | bytes) -> Any:
        reading = microseconds(self._clock()) if self._clock is not None else ""
        return await self._ask(
            self._script(keys=self._keys, args=[step, reading, MAX_TIDIED, *arguments])
        )

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except (RedisError, OSError) as error:
            # Not chained: what is no Redis server may quote the password that it was sent.
            said = str(error).replace(self._password, "…") if self._password else str(error)
            raise StoreError(
                f"the limit store {self._name} failed: {type(error).__name__}: {said}; see that a "
                "Redis or Valkey server answers there and takes the user and password given"
            ) from None


def _options(url: str) -> dict[str, Any]:
    """What redis-py's pool needs: our defaults, what the URL says, and what it may not say.

    Raises:
        StoreError: without a word of the URL, which may hold a password.
    """
    try:
        options = parse_url(url)
        if urlsplit(url).path.strip("/") and not {"db", "path"} & options.keys():
            raise ValueError("what stands for the database is no number")
    except ValueError:
        raise StoreError(
            "the URL of the limit store cannot be read; write redis://host:port/db with a number "
            "for db, and special characters of a password as %XX"
        ) from None
    defaults = {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "max_connections": MAX_CONNECTIONS,
        "timeout": WAIT_S,
        "protocol": 2,
    }
    return {**defaults, **options, "retry": Retry(NoBackoff(), 0), "decode_responses": True}


def _arguments(claims: tuple[Claim, ...]) -> Iterator[int | str]:
    """Six for each claim, as the script takes them."""
    for claim in claims:
        yield claim.dimension.value
        yield claim.counter
        yield claim.window_s * MICROSECONDS
        yield claim.amount
        yield claim.cost
        yield microseconds(claim.period.ends_in_s) if claim.period else ""


def _charges(spend: Spend) -> Iterator[int | str]:
    """Two for each dimension that stays charged."""
    for dimension in Dimension:
        if dimension is not Dimension.CONCURRENCY:
            yield dimension.value
            yield spend.amount(dimension)


def _windows(used: list[str], reserved: list[str]) -> Iterable[Window]:
    """From both hashes, each a list of names and counts in turn."""
    windows: dict[str, Window] = {}
    for name, count in _groups(used, 2):
        _window(windows, name).used = int(count)
    for name, count in _groups(reserved, 2):
        _window(windows, name).reserved = int(count)
    return windows.values()


def _window(windows: dict[str, Window], name: str) -> Window:
    number, window_us, counter = name.split(" ", 2)
    fresh = Window(
        counter=counter,
        window=int(number),
        window_us=int(window_us),
        fades_us=_NOT_FADED_US,  # what has is not there any more
    )
    return windows.setdefault(name, fresh)


def _groups(items: list[_Item], size: int) -> Iterator[tuple[_Item, ...]]:
    """The first few, the next few, and so on."""
    return zip(*(items[start::size] for start in range(size)), strict=True)


def _shown(url: str, options: Mapping[str, Any]) -> str:
    """The URL as far as it holds no secret."""
    scheme = urlsplit(url).scheme
    if "path" in options:
        return f"{scheme}://{options['path']}"
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return f"{scheme}://{host}:{port}/{options.get('db', 0)}"
