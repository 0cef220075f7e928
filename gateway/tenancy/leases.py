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
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from gateway.errors import Overloaded
from gateway.stores.base import (
    Charge,
    Claim,
    Dimension,
    LimitState,
    LimitStore,
    OnStoreError,
    Refused,
    Spend,
    StoreError,
)
from gateway.stores.memory import MemoryStore
from gateway.tenancy.limits import QuotaWarning, refusal, warnings_of

logger = logging.getLogger(__name__)
limits_log = logging.getLogger("turnout.limits")

LEASE_TTL_S = 30.0
"""How long a killed process holds what it reserved. Three heartbeats: two may fail."""

HEARTBEAT_S = 10.0
"""An extension costs about 0.2 ms, so 500 leases cost one percent of a core."""


def _nothing() -> None:
    pass


def _nothing_of(_: QuotaWarning) -> None:
    pass


@dataclass(slots=True, kw_only=True)
class Lease:
    """One running request. Whoever serves it says what it spent before it ends."""

    lease_id: str
    store: LimitStore = field(repr=False)  # where it began, and ends
    claims: tuple[Claim, ...] = ()
    states: tuple[LimitState, ...] = ()  # the limits right after the reservation, for the headers
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
        num_gateways: int = 1,
        on_warning: Callable[[QuotaWarning], None] = _nothing_of,
        on_store_error: Callable[[], None] = _nothing,
        ttl_s: float = LEASE_TTL_S,
        heartbeat_s: float = HEARTBEAT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._local = MemoryStore(clock=time.monotonic)  # for shares, while the store fails
        self._num_gateways = num_gateways
        self._on_warning = on_warning
        self._on_store_error = on_store_error
        self._is_failing = False
        self._ttl_s = ttl_s
        self._heartbeat_s = heartbeat_s
        self._sleep = sleep
        self._alive: dict[str, LimitStore] = {}
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
        lease = await self._reserve(lease_id, claims)
        self._alive[lease_id] = lease.store
        return lease

    async def end(self, lease: Lease, not_kept: Callable[[], None] = _nothing) -> None:
        """Settle or release a lease. Called once; not lost if the caller is cancelled meanwhile.

        not_kept: called if the store did not take the lease's end, and so has no record of it.
        """
        self._alive.pop(lease.lease_id, None)
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
        for store in (self._local, self._store):
            held = tuple(lease_id for lease_id, its in self._alive.items() if its is store)
            gone = await store.extend(held, self._ttl_s)
            for lease_id in gone & self._alive.keys():  # others have ended meanwhile
                del self._alive[lease_id]
                logger.warning("lease %s expired while its request was running", lease_id)

    async def _beat(self) -> None:
        while True:
            await self._sleep(self._heartbeat_s)
            try:
                await self.extend_all()
            except Exception:  # a background task's door: the next beat may succeed
                logger.exception("lease heartbeat failed; the next is in %s s", self._heartbeat_s)

    async def _reserve(self, lease_id: str, claims: tuple[Claim, ...]) -> Lease:
        lease = Lease(lease_id=lease_id, store=self._store, claims=claims)
        try:
            outcome = await self._store.reserve(lease_id, claims, self._ttl_s)
        except asyncio.CancelledError:
            await self.end(lease)  # the store may have granted it all the same
            raise
        except StoreError as error:
            return await self._reserve_here(lease_id, claims, error)
        if self._is_failing:
            self._is_failing = False
            logger.info("the limit store works again")
        if isinstance(outcome, Refused):
            raise refusal(outcome)
        lease.states = outcome.states
        return lease

    async def _reserve_here(
        self, lease_id: str, claims: tuple[Claim, ...], error: StoreError
    ) -> Lease:
        """While the store fails: by the rule of each limit."""
        self._on_store_error()
        if not self._is_failing:
            self._is_failing = True
            logger.error("the limit store fails: %s", error)
        if any(claim.on_store_error is OnStoreError.DENY for claim in claims):
            raise Overloaded("The limits cannot be checked at the moment; try again.") from error
        shares = tuple(
            replace(claim, amount=max(1, claim.amount // self._num_gateways))
            for claim in claims
            if claim.on_store_error is OnStoreError.LOCAL_SHARE
        )
        outcome = await self._local.reserve(lease_id, shares, self._ttl_s)
        if isinstance(outcome, Refused):
            if math.isinf(outcome.retry_after_s):  # of the share, not of the limit
                raise Overloaded("The limits cannot be shared at the moment; try again.") from error
            raise refusal(outcome)
        return Lease(lease_id=lease_id, store=self._local, claims=shares, states=outcome.states)

    async def _tell_store(self, lease: Lease, not_kept: Callable[[], None]) -> None:
        """The one terminal transition. A failure is ours, not the client's: logged and counted."""
        is_kept = lease.store is self._store  # nobody collects records from the other one
        record = lease.record if is_kept else b""
        try:
            if lease.spend is None:
                ended = await lease.store.release(lease.lease_id, record)
            else:
                charges = await lease.store.settle(lease.lease_id, lease.spend, record)
                ended = charges is not None
                self._warn(lease, charges or ())
        except Exception:  # a background task's door: nobody else would hear of it
            logger.exception("cannot end lease %s; it expires by itself", lease.lease_id)
            ended = False
        if not (ended and is_kept):
            not_kept()
        if not ended and lease.spend is not None:
            self.unsettled += 1
            tokens = lease.spend.amount(Dimension.TOKENS)
            logger.warning("lease %s: %d tokens not charged", lease.lease_id, tokens)

    def _warn(self, lease: Lease, charges: tuple[Charge, ...]) -> None:
        for warning in warnings_of(lease.claims, charges):
            claim = warning.claim
            limits_log.warning(
                "limit %s of %s: %d of %d %s used",
                *(claim.limit, claim.scope, warning.used, claim.amount, claim.dimension.value),
                extra={
                    "fields": {
                        "event": "limit_warning",
                        "limit": claim.limit,
                        "scope": claim.scope,
                        "dimension": claim.dimension.value,
                        "used": warning.used,
                        "amount": claim.amount,
                        "threshold": warning.threshold,
                    }
                },
            )
            self._on_warning(warning)
