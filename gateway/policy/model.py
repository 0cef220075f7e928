"""A compiled policy as frozen values: what `load` makes and `decide` reads. Knows no YAML and no
pydantic.

Every reference is already resolved: a name that appears here exists.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from backends.base import BackendState
from gateway.policy.prices import Price


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
class Match:
    """The facts a route asks for; all must hold, an empty tuple asks nothing.

    Values may be globs.
    """

    models: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()  # "chat" | "completions" | "generate"
    stream: bool | None = None
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (name, values); it has to be there
    min_prompt_tokens: int | None = None  # inclusive
    max_prompt_tokens: int | None = None  # inclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Per phase and in total, in seconds."""

    first_token_s: float
    between_tokens_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A rule: requests that match go to `use`, then to the fallbacks in order."""

    name: str
    match: Match
    use: str
    fallback: tuple[str, ...]
    timeouts: Timeouts
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A whole policy. `digest` is the first 12 hex digits of the file's SHA-256."""

    digest: str
    backends: Mapping[str, BackendConfig]
    models: Mapping[str, Model]
    default_model: str
    plans: Mapping[str, Plan]
    routes: tuple[Route, ...]
    header_names: frozenset[str]  # that routes ask for, in lower case
    estimate_output_tokens: int  # reserved when the client sends no max_tokens
    currency: str = ""  # of all prices; "" if there may be none


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a request when it is routed."""

    tenant: str
    plan: str
    model: str  # as the client wrote it; "" when the dialect has none
    endpoint: str
    stream: bool
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # by name, in lower case
    prompt_tokens: int | None = None  # None: nobody could count them exactly
    key_models: tuple[str, ...] = ("*",)  # globs: the key's own list, which narrows the plan's


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Where a request goes, and why. `reject` is set when it goes nowhere."""

    decision_id: str  # "<policy digest>/<route>"
    model: str = ""  # the public name after aliases
    route: str = ""
    attempts: tuple[str, ...] = ()  # backend names, in the order to try them
    timeouts: Timeouts | None = None
    limits: tuple[LimitUse, ...] = ()  # the plan's and the route's
    priority: int = 0  # the plan's
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A refusal: the reason, and a message that says what to change."""

    reason: RejectReason
    message: str


Health = Mapping[str, BackendState]
