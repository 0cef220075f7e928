"""Counts per address of what no tenant pays for: admin requests, and credentials that open nothing.

slowapi's `Limiter` counts, through plain calls: its decorators see a request before it is known
whether its key is good. Counters live in this process on purpose, since a look-up elsewhere for
each stranger would be what a guard is there to spare; of several processes each counts its own.
They are in fixed windows of a minute, so an address has at most twice its limit in a minute across
a border, and attempts that are under way at the same moment are not held against each other.

Who is over the limit of failures is refused before any look-up, except with credentials that were
found good here before: those who share an address with a scanner go on working. Remembering them
takes 5 us a request. Signed tokens are checked in any case, and not remembered.

Knows no HTTP, no key's form and no database. Source: the `limits` documentation on custom storages.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import cast

from limits import RateLimitItemPerMinute
from limits.storage import Storage
from slowapi import Limiter

from gateway.errors import RateLimited, Unauthenticated
from gateway.networks import Address

logger = logging.getLogger(__name__)

MAX_COUNTERS = 10_000
"""Addresses that are counted at once; about 3 MB. Of more, those that began first start anew."""

MAX_KNOWN = 4096
"""Good credentials that are remembered, least recently used first out; about 1 MB."""

IPV6_PREFIX = 64
"""What one customer of a provider has of IPv6 at least (RFC 6177): counted together."""


ADMIN_REQUESTS = "requests to /admin"


class Door(enum.Enum):
    """Where credentials are shown, by what fails there. What opens one is unknown at the other."""

    PUBLIC = "failed authentications"
    ADMIN = "failed authentications for /admin"


class Counters(Storage):
    """Counters of `limits` in memory, by a clock that is given, and never more than `max_counters`.

    `limits`' own have neither bound nor clock, and start a thread that walks through all of them.
    All counters must have the same window.
    """

    STORAGE_SCHEME = ["turnout"]  # noqa: RUF012 - read by the base class, which made it a list

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        *,
        clock: Callable[[], float],
        max_counters: int = MAX_COUNTERS,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._clock = clock
        self._max_counters = max_counters
        self._counters: OrderedDict[str, tuple[int, float]] = OrderedDict()  # first to end first

    @property
    def base_exceptions(self) -> type[Exception]:
        """What this storage may raise: nothing."""
        return ValueError

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Add to a counter, which begins now and ends `expiry` seconds later if there is none."""
        self._drop_ended()
        count, ends_s = self._counters.get(key, (0, self._clock() + expiry))
        self._counters[key] = (count + amount, ends_s)
        if len(self._counters) > self._max_counters:
            self._counters.popitem(last=False)
        return count + amount

    def get(self, key: str) -> int:
        """What is counted now."""
        self._drop_ended()
        return self._counters.get(key, (0, 0.0))[0]

    def get_expiry(self, key: str) -> float:
        """When a counter ends, by the clock; now, if there is none."""
        return self._counters.get(key, (0, self._clock()))[1]

    def check(self) -> bool:
        """Whether this works."""
        return True

    def reset(self) -> int:
        """Forget all; how many there were."""
        number = len(self._counters)
        self._counters.clear()
        return number

    def clear(self, key: str) -> None:
        """Forget one."""
        self._counters.pop(key, None)

    def _drop_ended(self) -> None:
        now_s = self._clock()
        while self._counters and next(iter(self._counters.values()))[1] <= now_s:
            self._counters.popitem(last=False)


class Guard:
    """The counters of this process. Limits are per minute and address; 0 is no limit."""

    def __init__(
        self,
        *,
        auth_failures_per_min: int,
        admin_auth_failures_per_min: int,
        admin_requests_per_min: int,
        clock: Callable[[], float],
    ) -> None:
        """clock: seconds that never go back."""
        self._failures = {
            Door.PUBLIC: _per_minute(auth_failures_per_min),
            Door.ADMIN: _per_minute(admin_auth_failures_per_min),
        }
        self._admin_requests = _per_minute(admin_requests_per_min)
        self._clock = clock
        # annotated as texts, but handed on to the storage as they are
        options = cast("dict[str, str]", {"clock": clock})
        limiter = Limiter(
            key_func=source_of,
            strategy="fixed-window",
            storage_uri="turnout://",
            storage_options=options,
            headers_enabled=False,
        )
        self._counts = limiter.limiter
        self._known: OrderedDict[bytes, None] = OrderedDict()  # least recently used first

    def count_admin_request(self, address: Address | None) -> None:
        """Count a request to the admin API.

        Raises:
            RateLimited: the address has made too many.
        """
        limit, source = self._admin_requests, source_of(address)
        if limit is not None and not self._counts.hit(limit, ADMIN_REQUESTS, source):
            raise self._refusal(limit, ADMIN_REQUESTS, source)

    @contextmanager
    def attempt(
        self, door: Door, address: Address | None, credentials: Sequence[bytes]
    ) -> Generator[None]:
        """Around the look-up of a key. If the block raises `Unauthenticated`, that is counted.

        credentials: all that the request shows, as it came in.

        Raises:
            RateLimited: the address has failed too often, and these were never found good here.
        """
        limit = self._failures[door]
        if limit is None:
            yield
            return
        failures, source = door.value, source_of(address)
        known = _fingerprint(door, credentials)
        if known not in self._known and not self._counts.test(limit, failures, source):
            raise self._refusal(limit, failures, source)
        try:
            yield
        except Unauthenticated:
            self._known.pop(known, None)
            self._count_failure(limit, failures, source)
            raise
        self._remember(known)

    @contextmanager
    def proof(self, door: Door, address: Address | None) -> Generator[None]:
        """Around the check of what proves itself, as a signed token does: each is new, and a good
        one is told from a bad one without a look-up. So all are checked; bad ones are counted.

        Raises:
            RateLimited: it is bad, and the address has failed too often.
        """
        limit = self._failures[door]
        try:
            yield
        except Unauthenticated as error:
            if limit is None:
                raise
            failures, source = door.value, source_of(address)
            if not self._counts.test(limit, failures, source):
                raise self._refusal(limit, failures, source) from error
            self._count_failure(limit, failures, source)
            raise

    def _count_failure(self, limit: RateLimitItemPerMinute, failures: str, source: str) -> None:
        self._counts.hit(limit, failures, source)
        if not self._counts.test(limit, failures, source):
            logger.warning("%d %s from %s within a minute", limit.amount, failures, source)

    def _remember(self, known: bytes) -> None:
        self._known[known] = None
        self._known.move_to_end(known)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _refusal(self, limit: RateLimitItemPerMinute, what: str, source: str) -> RateLimited:
        ends_s = self._counts.get_window_stats(limit, what, source).reset_time
        retry_after_s = max(ends_s - self._clock(), 0.0)
        return RateLimited(
            f"The limit of {limit.amount} {what} per minute is reached for your address; "
            f"try again in {math.ceil(retry_after_s)} s.",
            retry_after_s=retry_after_s,
            dimension="requests",
            limit=what,
        )


def source_of(address: Address | None) -> str:
    """Who is counted as one: an address of IPv4, a network of IPv6, and all that are not known."""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))
    return "unknown" if address is None else str(address)


def _per_minute(amount: int) -> RateLimitItemPerMinute | None:
    return RateLimitItemPerMinute(amount) if amount else None


def _fingerprint(door: Door, credentials: Sequence[bytes]) -> bytes:
    """Enough to know credentials by, and nothing to learn them from."""
    return hashlib.blake2b(b"\0".join((door.name.encode(), *credentials)), digest_size=16).digest()
