"""A compiled policy as frozen values: what `load` makes and `decide` reads. Knows no YAML and no
pydantic.

Every reference is already resolved: a name that appears here exists.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.policy.match import EVERYTHING, Match
from gateway.policy.prices import Price

FAIL_OVER_ON = ("connect", "timeout", "429", "5xx", "cut")
"""Kinds of failures. "cut" is any after the answer has begun: another backend goes on with it."""


class Rate(NamedTuple):
    """So much in a sliding window of seconds, or in each day or month of the calendar."""

    amount: int  # of money in millionths
    window_s: int  # 0 for a period
    period: str = ""  # "day" | "month"


class Reset(NamedTuple):
    """When days and months begin."""

    hour: int = 0
    minute: int = 0
    zone: str = "UTC"  # a name of the IANA time zone database


MIDNIGHT = Reset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One entry of `limits:`."""

    name: str
    requests: Rate | None = None
    input_tokens: Rate | None = None
    output_tokens: Rate | None = None
    tokens: Rate | None = None  # both together
    cost: Rate | None = None
    concurrent: int | None = None
    reset: Reset = MIDNIGHT
    warn_at: tuple[int, ...] = ()  # percent of what is per day or month; ascending
    per: str = ""  # "tenant" | "key" | "plan" | "route"; "" for what it is attached to
    on_store_error: str = "deny"  # | "local_share" | "allow"


class LimitUse(NamedTuple):
    """A limit and what it is attached to."""

    limit: Limit
    place: str  # "plan:NAME" | "route:NAME" | "backend:NAME"


class BreakerRule(NamedTuple):
    """After how many failures in a row a backend is left alone, and for how long at first."""

    failures: int
    cooldown_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """One entry of `backends:`.

    `options` is the engine's own, checked by the engine's registry entry.
    """

    name: str
    engine: str  # a name of `backends.registry`
    model: str  # a catalog name, or a path; of "fastchat", what its workers call it
    options: Mapping[str, str | int | float | bool]
    price: Price | None = None  # None: what it answers is counted, and not charged
    limits: tuple[Limit, ...] = ()  # our own allowance there
    breaker: BreakerRule | None = None  # None: an engine of ours, whose process is watched


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a tenant on it may do."""

    name: str
    limits: tuple[Limit, ...]
    models: tuple[str, ...]  # public names; ("*",) for all
    priority: int = 0  # a higher one goes first
    weight: float = 1.0  # of a share of the engine, among tenants of one priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A public model name and the other names it answers to."""

    name: str
    aliases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Per phase and in total, in seconds."""

    first_token_s: float
    between_tokens_s: float
    total_s: float


class Retry(NamedTuple):
    """How often one backend is asked before the next is."""

    num_attempts: int = 1
    budget: float = 0.1  # repeated attempts, as a share of first ones


ONCE = Retry()


class Fallback(NamedTuple):
    """A backend that is tried after those that a route is for, and for which requests it is."""

    backend: str
    when: Match = EVERYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A rule: requests that match go to one of `shares`, then to the fallbacks in order."""

    name: str
    match: Match
    shares: Mapping[str, float]  # by backend; of a pool they are equal
    balance: str = ""  # of a pool: "least_busy" | "p2c" | "latency" | "cost"; else drawn by share
    has_affinity: bool = False  # whether requests of one session keep their backend
    fallback: tuple[Fallback, ...]
    fail_over_on: frozenset[str]  # some of FAIL_OVER_ON
    retry: Retry
    timeouts: Timeouts
    limits: tuple[Limit, ...] = ()
    priority: int | None = None  # in place of the plan's

    @property
    def backends(self) -> tuple[str, ...]:
        """All that a request may be sent to, each once."""
        return tuple(dict.fromkeys((*self.shares, *(one.backend for one in self.fallback))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. `digest` is the first 12 hex digits of the file's SHA-256."""

    digest: str
    backends: Mapping[str, BackendConfig]
    models: Mapping[str, Model]
    default_model: str
    plans: Mapping[str, Plan]
    routes: tuple[Route, ...]
    header_names: frozenset[str]  # that routes and fallbacks ask for, in lower case
    has_affinity: bool  # whether some route asks for sessions
    estimate_output_tokens: int  # reserved when the client sends no max_tokens
    currency: str = ""  # of all prices; "" if there may be none


class LimitCheck(NamedTuple):
    """One counter of a limit, held against what a request may take at most."""

    limit: str
    place: str  # as in LimitUse
    dimension: (
        str  # "requests" | "input_tokens" | "output_tokens" | "tokens" | "cost" | "concurrent"
    )
    used: int  # of money in millionths, as all of these
    asked: int
    amount: int

    @property
    def fits(self) -> bool:
        """Whether the request may have it."""
        return self.used + self.asked <= self.amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes, and why. `reject` is set when it goes nowhere."""

    decision_id: str  # "<policy digest>/<route>"
    model: str = ""  # the public name after aliases
    route: str = ""
    attempts: tuple[str, ...] = ()  # backend names, in the order to try them
    timeouts: Timeouts | None = None
    fail_over_on: frozenset[str] = frozenset()
    retry: Retry = ONCE
    limits: tuple[LimitUse, ...] = ()  # the plan's and the route's
    limits_checked: tuple[LimitCheck, ...] = ()  # where the usage was given
    priority: int = 0  # the route's, or the plan's
    weight: float = 1.0  # the plan's
    rejected_candidates: tuple[tuple[str, str], ...] = ()  # (backend, why)
    trace: tuple[tuple[str, str], ...] = ()  # (route, "matched" | the first key that did not hold)
    reject: Reject | None = None


class RejectReason(enum.Enum):
    """Why a request goes nowhere."""

    UNKNOWN_MODEL = "unknown_model"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    UNKNOWN_PLAN = "unknown_plan"
    NO_ROUTE = "no_route"
    NO_BACKEND = "no_backend"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A refusal: the reason, and a message that says what to change."""

    reason: RejectReason
    message: str
    limit: str = ""  # that has too little left
