"""The limit store: atomic reservations over several limits at once.

A *lease* is the store's record of one running request: what it reserved in which counters, and when
it expires by itself (a killed gateway cannot leak). Every operation is one atomic step. Time is the
store's: a process clock that the caller injects for sqlite and memory, the server's for redis; it
must never go backwards within a lease.

Rate limits use the sliding-window counter: the count of the current fixed window plus the previous
window's count weighted by how much of it the sliding window still covers. Knows nothing of tenants,
plans or HTTP.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Dimension(enum.Enum):
    """What is counted."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"  # leases alive now; `window_s` is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one request asks of one limit."""

    limit: str  # the limit's name in the policy
    scope: str  # whose counter: "tenant:acme", "key:…"
    dimension: Dimension
    amount: int  # how much the window, or the moment, holds
    window_s: int  # 0 for concurrency
    cost: int  # to reserve: 1 request, 1 slot, or the most tokens this request may use

    @property
    def counter(self) -> str:
        return f"{self.limit}/{self.dimension.value}/{self.window_s}/{self.scope}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitState:
    """One limit as it stands right after a reservation was granted or refused."""

    claim: Claim
    remaining: int  # never negative
    reset_s: float  # until the limit is whole again; 0 for concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """All claims were reserved."""

    states: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Nothing was reserved, in any limit: `by` is the claim that did not fit."""

    by: Claim
    retry_after_s: (
        float  # until the same claim could fit; `inf` if its cost is over the whole amount
    )
    states: tuple[LimitState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is counted for a scope now; for tests and operators."""

    counter: str
    used: int
    reserved: int


class LimitStore(Protocol):
    """All methods raise `StoreError` when the store itself fails."""

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        """All or nothing.

        The lease expires, and gives back everything it reserved, `ttl_s` from now unless extended.
        """
        ...

    async def extend(self, lease_id: str, ttl_s: float) -> bool:
        """Push the expiry of a living lease to `ttl_s` from now; false if it is gone."""
        ...

    async def settle(self, lease_id: str, tokens: int) -> bool:
        """End a lease: concurrency is given back, token reservations become `tokens` used. False if
        it is gone.

        Request counts stay as they are. The correction goes to the window the reservation was made
        in.
        """
        ...

    async def release(self, lease_id: str) -> bool:
        """End a lease as if it had never been: requests and tokens are given back too.

        False if it is gone.
        """
        ...

    async def usage(self) -> tuple[Usage, ...]:
        """Every counter that is not zero, expired leases already reaped."""
        ...

    async def check(self) -> None:
        """Nothing, if the store answers."""
        ...

    async def aclose(self) -> None: ...


class StoreError(Exception):
    """The store cannot be reached or is damaged."""
