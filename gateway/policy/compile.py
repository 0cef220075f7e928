"""From the entries of a policy file, each right by itself, to what decisions are made of.

Every reference is known to lead somewhere. Pure. Knows no YAML and no positions.
"""

from __future__ import annotations

from gateway.policy.match import MINUTES_A_DAY, SESSION_HEADERS, Match, Names, Range, TimeOfDay
from gateway.policy.model import (
    FAIL_OVER_ON,
    MIDNIGHT,
    ONCE,
    BackendConfig,
    BreakerRule,
    Fallback,
    Limit,
    Model,
    Plan,
    Policy,
    Retry,
    Route,
    Timeouts,
)
from gateway.policy.prices import Price
from gateway.policy.schema import (
    DEFAULT_BREAKER,
    BackendEntry,
    DefaultsEntry,
    LimitEntry,
    PlanEntry,
    PolicyFile,
    PriceEntry,
)
from gateway.policy.schema_routes import (
    MatchEntry,
    NamesEntry,
    RangeEntry,
    RetryEntry,
    RouteEntry,
    TimeEntry,
    TimeoutEntry,
)

PRIORITIES = {"low": -1, "normal": 0, "high": 1}

# Where neither the route nor `defaults.timeout` says it. A CPU answers a full queue of short chats
# well within the first; the last keeps a forgotten request from living for ever.
DEFAULT_TIMEOUTS = Timeouts(first_token_s=60.0, between_tokens_s=30.0, total_s=600.0)

DEFAULT_BALANCE = "least_busy"

_REMOTE = frozenset[str]({"http"})  # what others run


def compiled(file: PolicyFile, digest: str) -> Policy:
    """What a whole file says. `digest` is that of its text."""
    limits = {name: _limit(name, entry, file.defaults) for name, entry in file.limits.items()}
    routes = tuple(_route(entry, file.defaults, limits) for entry in file.routes)
    return Policy(
        digest=digest,
        backends={
            name: BackendConfig(
                name=name,
                engine=entry.engine,
                model=entry.model,
                options=dict(entry.__pydantic_extra__),
                price=_price(entry.price),
                limits=tuple(limits[limit] for limit in entry.limits),
                breaker=_breaker(entry),
            )
            for name, entry in file.backends.items()
        },
        models={
            name: Model(name=name, aliases=tuple(entry.aliases))
            for name, entry in file.models.items()
        },
        default_model=file.defaults.model or next(iter(file.models)),
        plans={name: _plan(name, entry, limits) for name, entry in file.plans.items()},
        routes=routes,
        header_names=frozenset(
            name
            for route in routes
            for match in (route.match, *(one.when for one in route.fallback))
            for name, _ in match.headers
        ).union(SESSION_HEADERS if any(route.has_affinity for route in routes) else ()),
        has_affinity=any(route.has_affinity for route in routes),
        estimate_output_tokens=file.defaults.estimate_output,
        currency=file.currency or "",
    )


def _price(entry: PriceEntry | None) -> Price | None:
    if entry is None:
        return None
    cached = entry.input if entry.cached is None else entry.cached
    return Price(input=entry.input, cached=cached, output=entry.output)


def _breaker(entry: BackendEntry) -> BreakerRule | None:
    """One of our own engines says itself when it cannot work; others have one unless it is set."""
    if entry.breaker is not None:
        return BreakerRule(entry.breaker.failures, entry.breaker.cooldown)
    return DEFAULT_BREAKER if entry.engine in _REMOTE else None


def _limit(name: str, entry: LimitEntry, defaults: DefaultsEntry) -> Limit:
    return Limit(
        name=name,
        requests=entry.requests,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        tokens=entry.tokens,
        cost=entry.cost,
        concurrent=entry.concurrent,
        reset=entry.reset or MIDNIGHT,
        warn_at=entry.warn_at,
        per=entry.per or "",
        on_store_error=entry.on_store_error or defaults.on_store_error,
    )


def _plan(name: str, entry: PlanEntry, limits: dict[str, Limit]) -> Plan:
    return Plan(
        name=name,
        limits=tuple(limits[limit] for limit in entry.limits),
        models=tuple(entry.models),
        priority=PRIORITIES[entry.priority],
        weight=entry.weight,
    )


def _route(entry: RouteEntry, defaults: DefaultsEntry, limits: dict[str, Limit]) -> Route:
    kinds = defaults.fail_over_on if entry.fail_over_on is None else entry.fail_over_on
    return Route(
        name=entry.name,
        match=_match(entry.match),
        shares=_shares(entry),
        balance=_balance(entry),
        has_affinity=entry.affinity is not None or entry.balance == "hash",
        fallback=tuple(Fallback(one.use, _match(one.when)) for one in entry.fallback),
        fail_over_on=frozenset(FAIL_OVER_ON if kinds is None else kinds),
        retry=_retry(entry.retry, _retry(defaults.retry, ONCE)),
        timeouts=_timeouts(entry.timeout, _timeouts(defaults.timeout, DEFAULT_TIMEOUTS)),
        limits=tuple(limits[limit] for limit in entry.limits),
        priority=None if entry.priority is None else PRIORITIES[entry.priority],
    )


def _shares(entry: RouteEntry) -> dict[str, float]:
    if entry.split is not None:
        return entry.split
    return dict.fromkeys(entry.pool or [entry.use or ""], 1.0)


def _balance(entry: RouteEntry) -> str:
    """Of a pool; "hash" is a pool with affinity, which has to go somewhere without a session."""
    if entry.pool is None:
        return ""
    return DEFAULT_BALANCE if entry.balance in (None, "hash") else entry.balance


def _retry(entry: RetryEntry, defaults: Retry) -> Retry:
    return Retry(
        num_attempts=entry.attempts or defaults.num_attempts,
        budget=entry.budget or defaults.budget,
    )


def _match(entry: MatchEntry) -> Match:
    return Match(
        models=_names(entry.model),
        tenants=_names(entry.tenant),
        plans=_names(entry.plan),
        endpoints=None if entry.endpoint is None else Names(tuple(entry.endpoint)),
        stream=entry.stream,
        headers=_each(entry.header),
        tags=_each(entry.tags),
        prompt_tokens=_range(entry.prompt_tokens),
        max_tokens=_range(entry.max_tokens),
        time=_time(entry.time),
    )


def _names(entry: NamesEntry | None) -> Names | None:
    if entry is None:
        return None
    if entry.none is not None:
        return Names(tuple(entry.none), negated=True)
    return Names(tuple(entry.any or ()))


def _each(entries: dict[str, NamesEntry] | None) -> tuple[tuple[str, Names], ...]:
    found = ((name, _names(entry)) for name, entry in (entries or {}).items())
    return tuple((name, names) for name, names in found if names is not None)


def _range(entry: RangeEntry | None) -> Range | None:
    if entry is None:
        return None
    if entry.between is not None:
        return Range(*entry.between)
    return Range(
        low=None if entry.over is None else entry.over + 1,
        high=None if entry.under is None else entry.under - 1,
    )


def _time(entry: TimeEntry | None) -> TimeOfDay | None:
    if entry is None:
        return None
    return TimeOfDay(
        start_minute=entry.start or 0,
        stop_minute=MINUTES_A_DAY if entry.stop is None else entry.stop,
        days=frozenset(range(7) if entry.days is None else entry.days),
        zone=entry.zone,
    )


def _timeouts(entry: TimeoutEntry, defaults: Timeouts) -> Timeouts:
    return Timeouts(
        first_token_s=entry.first_token or defaults.first_token_s,
        between_tokens_s=entry.between_tokens or defaults.between_tokens_s,
        total_s=entry.total or defaults.total_s,
    )
