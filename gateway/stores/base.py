"""The limit store: atomic reservations over several limits at once, and what they came to.

A *lease* is the store's record of one running request: what it reserved in which counters, and when
it expires by itself (a killed gateway cannot leak). Every operation is one atomic step. Time is the
store's: a process clock that the caller injects for sqlite and memory, the server's for redis; it
must never go backwards within a lease.

Rates use the sliding-window counter: the count of the current fixed window plus the previous
window's count weighted by how much of it the sliding window still covers. What counts in a *period*
of the calendar stands until that is over; which day or month it is, in whose time zone, the caller
knows.

What a request came to is kept beside its counters, in the *outbox*, by the very step that charges
it: a process that is killed between two steps leaves no charge without a record, nor the reverse.

Knows nothing of tenants, plans or HTTP, nor of what a record holds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Dimension(enum.Enum):
    """What is counted."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    TOKENS = "tokens"  # both
    COST = "cost"  # millionths of the policy's currency
    CONCURRENCY = "concurrency"  # leases alive now


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """What a request used, or may use at most."""

    input_tokens: int
    output_tokens: int
    cost_micros: int

    def amount(self, dimension: Dimension) -> int:
        """Of one dimension; one request, one slot."""
        match dimension:
            case Dimension.INPUT_TOKENS:
                return self.input_tokens
            case Dimension.OUTPUT_TOKENS:
                return self.output_tokens
            case Dimension.TOKENS:
                return self.input_tokens + self.output_tokens
            case Dimension.COST:
                return self.cost_micros
            case Dimension.REQUESTS | Dimension.CONCURRENCY:
                return 1


class OnStoreError(enum.Enum):
    """What becomes of a limit that cannot be checked, because the store failed."""

    DENY = "deny"  # nobody is served uncounted
    LOCAL_SHARE = "local_share"  # each gateway counts its share of it by itself
    ALLOW = "allow"  # it holds nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A day or month of the calendar, as the caller's clock and time zone have it."""

    name: str  # "day:2026-12-03T00:00@Europe.Berlin": part of the counter's name
    ends_in_s: float  # from now; of several ends that a name is told to have, the latest holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one request asks of one limit."""

    limit: str  # the limit's name in the policy
    scope: str  # whose counter: "tenant:acme", "key:…"
    dimension: Dimension
    amount: int  # how much the window, the period or the moment holds
    window_s: int  # of a sliding window; 0 for concurrency and for a period
    cost: int  # to reserve: 1 request, 1 slot, or the most this request may use
    period: Period | None = None
    warn_at: tuple[int, ...] = ()  # of a period: how much of it used is worth an event; ascending
    on_store_error: OnStoreError = OnStoreError.DENY

    @property
    def counter(self) -> str:
        """Its name. What one request counts in lies side by side in an ordered store."""
        window = self.period.name if self.period else self.window_s
        return f"{self.scope}/{self.limit}/{self.dimension.value}/{window}"


class LimitState(NamedTuple):
    """One limit as it stands right after a reservation was granted or refused.

    A frozen dataclass would take three times as long to make, and a request makes one per limit.
    """

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
    is_used_up: bool = False  # of a period: by what was used, not merely by what is reserved now


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a settled lease added to a counter of a period, and what it came to by that."""

    counter: str
    charged: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record in the outbox: UTF-8, and else its writer's business."""

    entry_id: str  # the store's own, to forget it by
    record: bytes


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

    async def extend(self, lease_ids: tuple[str, ...], ttl_s: float) -> frozenset[str]:
        """Push the expiry of living leases to `ttl_s` from now; gives those that are gone."""
        ...

    async def settle(
        self, lease_id: str, spend: Spend, record: bytes = b""
    ) -> tuple[Charge, ...] | None:
        """End a lease: concurrency is given back, what was reserved of tokens and money becomes
        what was spent. A record that is not empty goes to the outbox in the same step.

        Request counts stay as they are. The correction goes to the window, or the period, the
        reservation was made in. Gives what counts in periods that are not over; None, and keeps no
        record, if the lease is gone.
        """
        ...

    async def release(self, lease_id: str, record: bytes = b"") -> bool:
        """End a lease as if it had never been: requests, tokens and money are given back too. A
        record that is not empty goes to the outbox.

        False, and no record is kept, if the lease is gone.
        """
        ...

    async def collect(self, most: int, hold_s: float) -> tuple[Entry, ...]:
        """The oldest records of the outbox that nobody else holds, `most` at most.

        They are this caller's for `hold_s`: to carry where they belong, and to `forget` then. If it
        does not, the next caller gets them again.
        """
        ...

    async def forget(self, entry_ids: tuple[str, ...]) -> None:
        """Drop records from the outbox; those that are not there are no matter."""
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
