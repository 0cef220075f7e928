"""From a plan's limits to claims, and from a store's verdict to headers and errors. Pure.

Counters are per tenant: all keys of a tenant draw on the same ones. Knows no store and no HTTP
beyond the names of its headers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from gateway.errors import ClientError, InvalidRequest, QuotaExhausted, RateLimited
from gateway.policy.model import Limit
from gateway.stores.base import Claim, Dimension, LimitState, Refused, Spend
from gateway.tenancy.tenants import Principal

DAY_S = 86_400

_PERIODS = {1: "second", 60: "minute", 3600: "hour", DAY_S: "day", 30 * DAY_S: "month"}

_REPORTED = (Dimension.REQUESTS, Dimension.TOKENS)  # OpenAI has no headers for concurrency


def claims_for(limits: tuple[Limit, ...], principal: Principal, most: Spend) -> tuple[Claim, ...]:
    """What one request asks of the limits of its plan.

    `most` is what it may use: its prompt and all it may generate.
    """
    scope = f"tenant:{principal.tenant.tenant_id}"
    return tuple(
        Claim(
            limit=limit.name,
            scope=scope,
            dimension=dimension,
            amount=amount,
            window_s=window_s,
            cost=most.amount(dimension),
        )
        for limit in limits
        for dimension, amount, window_s in _parts(limit)
    )


def _parts(limit: Limit) -> Iterator[tuple[Dimension, int, int]]:
    if limit.requests is not None:
        yield Dimension.REQUESTS, *limit.requests
    if limit.tokens is not None:
        yield Dimension.TOKENS, *limit.tokens
    if limit.concurrent is not None:
        yield Dimension.CONCURRENCY, limit.concurrent, 0


def rate_headers(states: Iterable[LimitState]) -> tuple[tuple[str, str], ...]:
    """The `x-ratelimit-*` headers: of requests and of tokens, the limit with the least left."""
    states = tuple(states)
    headers: list[tuple[str, str]] = []
    for dimension in _REPORTED:
        same = [state for state in states if state.claim.dimension is dimension]
        if not same:
            continue
        tightest = min(same, key=lambda state: (state.remaining, -state.reset_s))
        name = dimension.value
        headers += [
            (f"x-ratelimit-limit-{name}", str(tightest.claim.amount)),
            (f"x-ratelimit-remaining-{name}", str(tightest.remaining)),
            (f"x-ratelimit-reset-{name}", go_duration(tightest.reset_s)),
        ]
    return tuple(headers)


def refusal(refused: Refused) -> ClientError:
    """The error a refused client gets.

    A request that is larger than a whole limit is its own fault and no wait would help, so it is
    an `InvalidRequest`, which no client repeats; everything else is a `RateLimited`.
    """
    claim = refused.by
    if math.isinf(refused.retry_after_s):
        remedy = (
            "shorten it or lower max_tokens"
            if claim.dimension is Dimension.TOKENS
            else "ask the operator"
        )
        return InvalidRequest(
            f"This request needs {claim.cost} {_unit(claim)}, but limit '{claim.limit}' holds "
            f"{claim.amount}{_per(claim)}; {remedy}.",
            param="max_tokens" if claim.dimension is Dimension.TOKENS else None,
            code="request_exceeds_limit",
        )
    # The last of a sliding window may be whole again only in the next one. Clients are told one
    # window at most, as they expect of a limit per minute; then the last of it takes one more try.
    retry_after_s = min(refused.retry_after_s, float(claim.window_s or math.inf))
    remaining = next(state.remaining for state in refused.states if state.claim == claim)
    error = QuotaExhausted if claim.window_s >= DAY_S else RateLimited
    return error(
        f"Limit '{claim.limit}' of {claim.amount} {_unit(claim)}{_per(claim)} is reached: this "
        f"request needs {claim.cost}, {remaining} are left; "
        f"try again in {go_duration(retry_after_s)}.",
        retry_after_s=retry_after_s,
        dimension=claim.dimension.value,
        limit=claim.limit,
        headers=rate_headers(refused.states),
    )


def _unit(claim: Claim) -> str:
    if claim.dimension is Dimension.CONCURRENCY:
        return "requests at a time"
    return str(claim.dimension.value)


def _per(claim: Claim) -> str:
    if not claim.window_s:
        return ""
    return f" per {_PERIODS.get(claim.window_s, f'{claim.window_s} s')}"


def go_duration(duration_s: float) -> str:
    """A duration as Go prints it and OpenAI sends it: `12ms`, `1.5s`, `6m0s`; never rounded down.

    Source: `time.Duration.String` of the Go standard library, to the millisecond.
    """
    ms = math.ceil(round(duration_s * 1000, 3))  # round: 1.1 * 1000 is a little over 1100
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest_ms / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
