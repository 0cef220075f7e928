"""From a policy's limits to claims, and from a store's verdict to headers and errors. Pure.

Whose counter a limit draws on is its scope: a tenant's, that is of all its keys, if a plan has it
and says nothing else. Knows no store, no clock, and no HTTP beyond the names of its headers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from gateway.errors import ClientError, InvalidRequest, QuotaExhausted, RateLimited
from gateway.policy.model import BackendConfig, Limit, LimitUse, Rate
from gateway.policy.prices import MICROS
from gateway.stores.base import (
    Charge,
    Claim,
    Dimension,
    LimitState,
    OnStoreError,
    Period,
    Refused,
    Spend,
)
from gateway.tenancy.periods import period_at
from gateway.tenancy.tenants import Principal

_WINDOWS = {1: "second", 60: "minute", 3600: "hour"}

_TOKENS = (Dimension.TOKENS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)

# OpenAI's clients know two families of headers.
_REPORTED = {"requests": (Dimension.REQUESTS,), "tokens": _TOKENS}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWarning:
    """So much of a day's or a month's allowance is used."""

    claim: Claim
    threshold: int  # of the claim's amounts in `warn_at`
    used: int


def claims_for(
    uses: tuple[LimitUse, ...], principal: Principal, most: Spend, now_s: float
) -> tuple[Claim, ...]:
    """What one request asks of the limits of its plan and its route.

    most: what it may use: its prompt and all it may generate, and what that would cost.
    now_s: Unix time, for days and months.
    """
    return tuple(
        claim
        for limit, place in uses
        for claim in _claims(limit, _scope(limit, place, principal), most, now_s)
    )


def backend_claims(backend: BackendConfig, most: Spend, now_s: float) -> tuple[Claim, ...]:
    """What one attempt asks of our own allowance at a backend, at that backend's own price."""
    cost_micros = 0
    if backend.price is not None:
        cost_micros = backend.price.cost_micros(
            prompt_tokens=most.input_tokens, cached_tokens=0, completion_tokens=most.output_tokens
        )
    most = replace(most, cost_micros=cost_micros)
    scope = f"backend:{backend.name}"
    return tuple(claim for limit in backend.limits for claim in _claims(limit, scope, most, now_s))


def _scope(limit: Limit, place: str, principal: Principal) -> str:
    match limit.per or ("tenant" if place.startswith("plan:") else ""):
        case "tenant":
            who = f"tenant:{principal.tenant.tenant_id}"
        case "key":
            who = f"key:{principal.key_id}"
        case _:
            return place
    return who if place.startswith("plan:") else f"{place}/{who}"


def _claims(limit: Limit, scope: str, most: Spend, now_s: float) -> Iterator[Claim]:
    for dimension, rate in _rates(limit):
        yield Claim(
            limit=limit.name,
            scope=scope,
            dimension=dimension,
            amount=rate.amount,
            window_s=rate.window_s,
            cost=most.amount(dimension),
            period=period_at(rate.period, limit.reset, now_s) if rate.period else None,
            warn_at=_thresholds(limit, rate) if rate.period else (),
            on_store_error=OnStoreError(limit.on_store_error),
        )


def _rates(limit: Limit) -> Iterator[tuple[Dimension, Rate]]:
    for dimension, rate in (
        (Dimension.REQUESTS, limit.requests),
        (Dimension.INPUT_TOKENS, limit.input_tokens),
        (Dimension.OUTPUT_TOKENS, limit.output_tokens),
        (Dimension.TOKENS, limit.tokens),
        (Dimension.COST, limit.cost),
    ):
        if rate is not None:
            yield dimension, rate
    if limit.concurrent is not None:
        yield Dimension.CONCURRENCY, Rate(limit.concurrent, 0)


def _thresholds(limit: Limit, rate: Rate) -> tuple[int, ...]:
    """Rounded up; of a small amount two may come to the same, which is told of once."""
    return tuple(sorted({-(-rate.amount * percent // 100) for percent in limit.warn_at}))


def warnings_of(claims: Iterable[Claim], charges: Iterable[Charge]) -> Iterator[QuotaWarning]:
    """What a settlement has made true: of all processes, one crosses a threshold."""
    by_counter = {claim.counter: claim for claim in claims if claim.warn_at}
    for charge in charges:
        claim = by_counter.get(charge.counter)
        for threshold in claim.warn_at if claim else ():
            if charge.used - charge.charged < threshold <= charge.used:
                assert claim is not None
                yield QuotaWarning(claim=claim, threshold=threshold, used=charge.used)


def rate_headers(states: Iterable[LimitState]) -> tuple[tuple[str, str], ...]:
    """The `x-ratelimit-*` headers: of requests and of tokens, the limit with the least left."""
    states = tuple(states)
    headers: list[tuple[str, str]] = []
    for name, dimensions in _REPORTED.items():
        same = [state for state in states if state.claim.dimension in dimensions]
        if not same:
            continue
        tightest = min(same, key=lambda state: (state.remaining, -state.reset_s))
        headers += [
            (f"x-ratelimit-limit-{name}", str(tightest.claim.amount)),
            (f"x-ratelimit-remaining-{name}", str(tightest.remaining)),
            (f"x-ratelimit-reset-{name}", go_duration(tightest.reset_s)),
        ]
    return tuple(headers)


def refusal(refused: Refused) -> ClientError:
    """The error a refused client gets.

    A request that is larger than a whole limit is its own fault and no wait would help, so it is
    an `InvalidRequest`, which no client repeats. A day or month that is used up is a
    `QuotaExhausted`; everything else, also a day of which others have merely reserved the rest, is
    a `RateLimited`.
    """
    claim = refused.by
    if math.isinf(refused.retry_after_s):
        is_short = claim.dimension in (*_TOKENS, Dimension.COST)
        remedy = "shorten it or lower max_tokens" if is_short else "ask the operator"
        return InvalidRequest(
            f"This request needs {_amount(claim, claim.cost)} {_unit(claim)}, but limit "
            f"'{claim.limit}' holds {_amount(claim, claim.amount)}{_per(claim)}; {remedy}.",
            param="max_tokens" if is_short else None,
            code="request_exceeds_limit",
        )
    # The last of a sliding window may be whole again only in the next one. Clients are told one
    # window at most, as they expect of a limit per minute; then the last of it takes one more try.
    retry_after_s = min(refused.retry_after_s, float(claim.window_s or math.inf))
    remaining = next(state.remaining for state in refused.states if state.claim == claim)
    error = QuotaExhausted if refused.is_used_up else RateLimited
    return error(
        f"Limit '{claim.limit}' of {_amount(claim, claim.amount)} {_unit(claim)}{_per(claim)} is "
        f"reached: this request needs {_amount(claim, claim.cost)}, "
        f"{_amount(claim, remaining)} are left; try again in {go_duration(retry_after_s)}.",
        retry_after_s=retry_after_s,
        dimension=claim.dimension.value,
        limit=claim.limit,
        headers=rate_headers(refused.states),
    )


def _amount(claim: Claim, number: int) -> str:
    if claim.dimension is Dimension.COST:
        return f"{Decimal(number) / MICROS:f}"
    return str(number)


def _unit(claim: Claim) -> str:
    match claim.dimension:
        case Dimension.CONCURRENCY:
            return "requests at a time"
        case Dimension.COST:
            return "of money"
        case _:
            return str(claim.dimension.value).replace("_", " ")


def _per(claim: Claim) -> str:
    if claim.period is not None:
        return f" per {_kind(claim.period)}"
    if not claim.window_s:
        return ""
    return f" per {_WINDOWS.get(claim.window_s, f'{claim.window_s} s')}"


def _kind(period: Period) -> str:
    return period.name.partition(":")[0]


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
