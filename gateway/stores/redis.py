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

from gateway.stores.base import Claim, Dimension, Granted, Refused, StoreError, Usage
from gateway.stores.window import (
    MICROSECONDS,
    Counts,
    Held,
    Window,
    decide,
    hold,
    microseconds,
    summarise,
)

SCRIPT = Path(__file__).with_name("redis.lua").read_text(encoding="utf-8")
KEYS = ("clock", "used", "fading", "reserved", "leases", "expiries")

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
_KEPT = -1  # what the script is told of a dimension that stays charged with its cost


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
            Counts(current=current, previous=previous) for current, previous in _pairs(numbers)
        ]
        outcome = decide(claims, counts, now_us)
        assert isinstance(outcome, Granted) == bool(verdict)
        return outcome

    async def extend(self, lease_id: str, ttl_s: float) -> bool:
        """See `LimitStore.extend`."""
        return bool(await self._run("extend", lease_id, microseconds(ttl_s)))

    async def settle(self, lease_id: str, tokens: int) -> bool:
        """See `LimitStore.settle`."""
        return bool(await self._run("finish", lease_id, *_charges(tokens)))

    async def release(self, lease_id: str) -> bool:
        """See `LimitStore.release`."""
        return bool(await self._run("finish", lease_id))

    async def usage(self) -> tuple[Usage, ...]:
        """See `LimitStore.usage`."""
        while True:
            now_us, num_expired, used, reserved = await self._run("usage")
            if not num_expired:  # else a step has reaped some of them
                return summarise(_windows(used, reserved), now_us)

    async def check(self) -> None:
        """See `LimitStore.check`."""
        await self._ask(self._client.ping())  # pyright: ignore[reportUnknownMemberType]

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._client.aclose(close_connection_pool=True)

    async def _run(self, step: str, *arguments: int | str) -> Any:
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
    """Five for each claim, as the script takes them."""
    for claim in claims:
        yield claim.dimension.value
        yield claim.counter
        yield claim.window_s * MICROSECONDS
        yield claim.amount
        yield claim.cost


def _charges(tokens: int) -> Iterator[int | str]:
    """Two for each dimension: what `Held.charge` leaves of a cost that is not known here."""
    for dimension in Dimension:
        yield dimension.value
        yield Held(counter="", dimension=dimension, window=0, cost=_KEPT).charge(tokens)


def _windows(used: list[str], reserved: list[str]) -> Iterable[Window]:
    """From both hashes, each a list of names and counts in turn."""
    windows: dict[str, Window] = {}
    for name, count in _pairs(used):
        _window(windows, name).used = int(count)
    for name, count in _pairs(reserved):
        _window(windows, name).reserved = int(count)
    return windows.values()


def _window(windows: dict[str, Window], name: str) -> Window:
    number, window_us, counter = name.split(" ", 2)
    fresh = Window(counter=counter, window=int(number), window_us=int(window_us))
    return windows.setdefault(name, fresh)


def _pairs(items: list[_Item]) -> Iterator[tuple[_Item, _Item]]:
    """The first with the second, the third with the fourth, and so on."""
    return zip(items[::2], items[1::2], strict=True)


def _shown(url: str, options: Mapping[str, Any]) -> str:
    """The URL as far as it holds no secret."""
    scheme = urlsplit(url).scheme
    if "path" in options:
        return f"{scheme}://{options['path']}"
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return f"{scheme}://{host}:{port}/{options.get('db', 0)}"
