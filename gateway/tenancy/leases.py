"""The lease around every request: reserved before dispatch, ended exactly once whatever happens.

What a request owes is one fact, `Lease.spend`: None until some backend has taken it on, then the
prompt and every token generated so far. When the request is over, however it ended, a lease
that has used something is settled with it and one that has not is released. A process that is
killed settles nothing: its leases expire in the store.

Knows no clock, and nothing of plans or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.errors import Overloaded
from gateway.stores.base import Claim, Dimension, LimitState, LimitStore, Refused, Spend, StoreError
from gateway.tenancy.limits import refusal

logger = logging.getLogger(__name__)

LEASE_TTL_S = 30.0
"""How long a killed process holds what it reserved. Three heartbeats: two may fail."""

HEARTBEAT_S = 10.0
"""An extension costs about 0.2 ms, so 500 leases cost one percent of a core."""


def _nothing() -> None:
    pass


@dataclass(slots=True, kw_only=True)
class Lease:
    """One running request. Whoever serves it says what it spent before it ends."""

    lease_id: str
    states: tuple[LimitState, ...]  # the limits right after the reservation, for the headers
    spend: Spend | None = None  # None: no backend has accepted the request, it costs nothing
    record: bytes = b""  # what the store keeps of it in the step that ends it; empty: nothing


class Leases:
    """All leases of this process. An async context manager: entered once, closed once.

    `unsettled` counts requests whose end did not reach the store, and so were not charged.
    """

    def __init__(
        self,
        store: LimitStore,
        *,
        ttl_s: float = LEASE_TTL_S,
        heartbeat_s: float = HEARTBEAT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._heartbeat_s = heartbeat_s
        self._sleep = sleep
        self._alive: set[str] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._heartbeat: asyncio.Task[None] | None = None
        self.unsettled = 0

    async def __aenter__(self) -> Self:
        self._heartbeat = asyncio.create_task(self._beat(), name="lease-heartbeat")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the heartbeat and see every ending through. The store stays open: it is not ours."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat])
        if self._endings:
            await asyncio.wait(self._endings)

    @asynccontextmanager
    async def acquire(self, lease_id: str, claims: tuple[Claim, ...]) -> AsyncGenerator[Lease]:
        """Reserve, hold while the body runs, then end the lease. Raises as `reserve` does."""
        lease = await self.reserve(lease_id, claims)
        try:
            yield lease
        finally:
            await self.end(lease)

    async def reserve(self, lease_id: str, claims: tuple[Claim, ...]) -> Lease:
        """Take a lease, and keep it alive. Whoever gets it ends it.

        Raises:
            RateLimited: a limit is reached.
            InvalidRequest: the request is larger than a whole limit.
            Overloaded: the store failed; nobody is served uncounted.
        """
        lease = Lease(lease_id=lease_id, states=await self._reserve(lease_id, claims))
        self._alive.add(lease_id)
        return lease

    async def end(self, lease: Lease, not_kept: Callable[[], None] = _nothing) -> None:
        """Settle or release a lease. Called once; not lost if the caller is cancelled meanwhile.

        not_kept: called if the store did not take the lease's end, and so has no record of it.
        """
        self._alive.discard(lease.lease_id)
        ending = asyncio.create_task(
            self._tell_store(lease, not_kept), name=f"end-{lease.lease_id}"
        )
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        await asyncio.shield(ending)

    async def problem(self) -> str:
        """Why the limits cannot be checked now; empty if they can."""
        try:
            await self._store.check()
        except StoreError as error:
            return str(error)
        return ""

    async def extend_all(self) -> None:
        """One heartbeat: push the expiry of every living lease."""
        gone = await self._store.extend(tuple(self._alive), self._ttl_s)
        for lease_id in gone & self._alive:  # others have ended meanwhile
            self._alive.discard(lease_id)
            logger.warning("lease %s expired while its request was running", lease_id)

    async def _beat(self) -> None:
        while True:
            await self._sleep(self._heartbeat_s)
            try:
                await self.extend_all()
            except Exception:  # a background task's door: the next beat may succeed
                logger.exception("lease heartbeat failed; the next is in %s s", self._heartbeat_s)

    async def _reserve(self, lease_id: str, claims: tuple[Claim, ...]) -> tuple[LimitState, ...]:
        try:
            outcome = await self._store.reserve(lease_id, claims, self._ttl_s)
        except asyncio.CancelledError:
            # The store may have granted it all the same.
            await self.end(Lease(lease_id=lease_id, states=()))
            raise
        except StoreError as error:
            logger.exception("cannot reserve for %s", lease_id)
            raise Overloaded("The limits cannot be checked at the moment; try again.") from error
        if isinstance(outcome, Refused):
            raise refusal(outcome)
        return outcome.states

    async def _tell_store(self, lease: Lease, not_kept: Callable[[], None]) -> None:
        """The one terminal transition. A failure is ours, not the client's: logged and counted."""
        try:
            if lease.spend is None:
                ended = await self._store.release(lease.lease_id, lease.record)
            else:
                charges = await self._store.settle(lease.lease_id, lease.spend, lease.record)
                ended = charges is not None
        except Exception:  # a background task's door: nobody else would hear of it
            logger.exception("cannot end lease %s; it expires by itself", lease.lease_id)
            ended = False
        if not ended:
            not_kept()
        if not ended and lease.spend is not None:
            self.unsettled += 1
            tokens = lease.spend.amount(Dimension.TOKENS)
            logger.warning("lease %s: %d tokens not charged", lease.lease_id, tokens)
