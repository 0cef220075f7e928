"""The provider's keys as they were fetched last, and when they are fetched again.

That is every `REFRESH_S`, so that a key the provider withdrew is not believed for longer, and when
a token names a key that is not among them, as after a rotation. Whoever sends such tokens causes a
fetch in `MIN_INTERVAL_S`, and no more. While the provider is down, the known keys go on. Knows no
HTTP and no tokens.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy.oidc.jwks import KeySet, SigningKey
from gateway.tenancy.oidc.provider import ProviderError

logger = logging.getLogger(__name__)

REFRESH_S = 300.0
"""Between two fetches that nobody asked for."""

MIN_INTERVAL_S = 10.0
"""From the end of a fetch to the next that a token may cause."""


class KeyRing:
    """Keys by their `kid`. Used concurrently, closed once."""

    def __init__(
        self, fetch: Callable[[], Awaitable[KeySet]], *, clock: Callable[[], float]
    ) -> None:
        """clock: seconds that never go back."""
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str, SigningKey] = {}
        self._has_failed = False  # the last time
        self._not_before_s = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """End the fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def key(self, kid: str) -> SigningKey:
        """The key of that name, fetched if it is new.

        Raises:
            Unauthenticated: the provider has none.
            Overloaded: the provider cannot be asked for one.
        """
        if kid not in self._keys:
            await self.refresh()
        if kid in self._keys:
            return self._keys[kid]
        if self._has_failed:
            raise Overloaded(
                "The identity provider cannot be asked for the key of this token; try again.",
                retry_after_s=max(self._not_before_s - self._clock(), 1.0),
            )
        raise Unauthenticated(
            "The token is signed with a key that the identity provider does not publish; "
            "get a new token."
        )

    async def refresh(self) -> None:
        """Fetch the keys, if that was not done just now; once, whoever waits for it."""
        if self._fetching is None:
            if self._clock() < self._not_before_s:
                return
            self._fetching = asyncio.create_task(self._refetch(), name="fetch-keys")
        await asyncio.shield(self._fetching)  # who leaves does not end it for the others

    async def keep_fresh(self) -> None:
        """Fetch the keys now and then, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_S)

    async def _refetch(self) -> None:
        try:
            found = await self._fetch()
        except ProviderError as error:
            self._has_failed = True
            logger.warning("no new keys of the identity provider: %s", error)
        else:
            self._has_failed = False
            if found.keys.keys() != self._keys.keys():
                logger.info("keys of the identity provider: %s", ", ".join(found.keys))
                for one in found.ignored:
                    logger.info("ignored a key of the identity provider: %s", one)
            self._keys = found.keys
        finally:
            self._fetching = None
            self._not_before_s = self._clock() + MIN_INTERVAL_S
