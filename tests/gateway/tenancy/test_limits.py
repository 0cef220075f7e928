"""From plan limits to claims, and from verdicts to headers and errors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gateway.errors import InvalidRequest, QuotaExhausted, RateLimited
from gateway.policy.model import Limit, LimitUse, Rate
from gateway.stores.base import Charge, Claim, Dimension, LimitState, Period, Refused, Spend
from gateway.tenancy.limits import claims_for, go_duration, rate_headers, refusal, warnings_of
from gateway.tenancy.tenants import Principal, Tenant

ACME = Principal(tenant=Tenant(tenant_id="tenant_1", name="acme", plan="free"), key_id="key_1")


def claim(dimension: Dimension, amount: int, window_s: int, *, cost: int = 1) -> Claim:
    return Claim(
        limit="free",
        scope="tenant:tenant_1",
        dimension=dimension,
        amount=amount,
        window_s=window_s,
        cost=cost,
    )


def state(
    dimension: Dimension, amount: int, remaining: int, reset_s: float, *, window_s: int = 60
) -> LimitState:
    return LimitState(
        claim=claim(dimension, amount, window_s), remaining=remaining, reset_s=reset_s
    )


def refused(by: Claim, retry_after_s: float, remaining: int = 0) -> Refused:
    standing = LimitState(claim=by, remaining=remaining, reset_s=60.0)
    return Refused(by=by, retry_after_s=retry_after_s, states=(standing,))


NOW_S = 1_796_083_200.0  # 2026-12-01T00:00:00Z


def claims_of(limit: Limit, place: str = "plan:free") -> tuple[Claim, ...]:
    return claims_for((LimitUse(limit, place),), ACME, MOST, NOW_S)


MOST = Spend(input_tokens=200, output_tokens=500, cost_micros=90)


def test_every_part_of_every_limit_becomes_a_claim() -> None:
    limits = (
        Limit(
            name="free",
            requests=Rate(60, 60),
            input_tokens=Rate(3000, 60),
            output_tokens=Rate(1000, 60),
            tokens=Rate(4000, 60),
            concurrent=2,
        ),
        Limit(name="daily", tokens=Rate(1_000_000, 0, "day"), warn_at=(50, 80)),
        Limit(name="money", cost=Rate(5_000_000, 0, "month")),
    )
    uses = tuple(LimitUse(limit, "plan:free") for limit in limits)
    claims = claims_for(uses, ACME, MOST, NOW_S)
    assert [(one.limit, one.dimension, one.amount, one.window_s, one.cost) for one in claims] == [
        ("free", Dimension.REQUESTS, 60, 60, 1),
        ("free", Dimension.INPUT_TOKENS, 3000, 60, 200),
        ("free", Dimension.OUTPUT_TOKENS, 1000, 60, 500),
        ("free", Dimension.TOKENS, 4000, 60, 700),
        ("free", Dimension.CONCURRENCY, 2, 0, 1),
        ("daily", Dimension.TOKENS, 1_000_000, 0, 700),
        ("money", Dimension.COST, 5_000_000, 0, 90),
    ]
    assert {one.scope for one in claims} == {"tenant:tenant_1"}
    assert claims[-2].period == Period(name="day:2026-12-01T00:00@UTC", ends_in_s=86_400.0)
    assert claims[-2].warn_at == (500_000, 800_000)
    assert claims[-1].period == Period(name="month:2026-12-01T00:00@UTC", ends_in_s=31 * 86_400.0)


def test_a_plan_without_limits_claims_nothing() -> None:
    assert claims_for((), ACME, MOST, NOW_S) == ()
    assert claims_of(Limit(name="none")) == ()


@pytest.mark.parametrize(
    ("per", "place", "scope"),
    [
        ("", "plan:free", "tenant:tenant_1"),
        ("key", "plan:free", "key:key_1"),
        ("plan", "plan:free", "plan:free"),
        ("", "route:long", "route:long"),
        ("tenant", "route:long", "route:long/tenant:tenant_1"),
        ("key", "route:long", "route:long/key:key_1"),
    ],
)
def test_a_limit_draws_on_the_counter_of_whom_it_is_per(per: str, place: str, scope: str) -> None:
    (claim,) = claims_of(Limit(name="any", concurrent=1, per=per), place)
    assert claim.scope == scope


def test_of_many_settlements_the_one_that_crosses_a_threshold_warns() -> None:
    (claim,) = claims_of(Limit(name="d", tokens=Rate(1000, 0, "day"), warn_at=(50, 80)))

    def thresholds(charged: int, used: int) -> list[int]:
        charge = Charge(counter=claim.counter, charged=charged, used=used)
        return [one.threshold for one in warnings_of((claim,), (charge,))]

    assert thresholds(40, 499) == []
    assert thresholds(40, 500) == [500]
    assert thresholds(40, 560) == []
    assert thresholds(700, 900) == [500, 800]


def test_thresholds_that_a_small_amount_rounds_to_the_same_warn_once() -> None:
    (claim,) = claims_of(Limit(name="d", requests=Rate(1, 0, "day"), warn_at=(50, 80)))
    assert claim.warn_at == (1,)


def test_headers_tell_of_the_tightest_limit_of_each_dimension() -> None:
    states = (
        state(Dimension.REQUESTS, 60, 12, 80.5),
        state(Dimension.REQUESTS, 1000, 9, 3600.0, window_s=3600),
        state(Dimension.TOKENS, 4000, 3300, 0.012),
        state(Dimension.CONCURRENCY, 4, 0, 0.0, window_s=0),
    )
    assert rate_headers(states) == (
        ("x-ratelimit-limit-requests", "1000"),
        ("x-ratelimit-remaining-requests", "9"),
        ("x-ratelimit-reset-requests", "1h0m0s"),
        ("x-ratelimit-limit-tokens", "4000"),
        ("x-ratelimit-remaining-tokens", "3300"),
        ("x-ratelimit-reset-tokens", "12ms"),
    )


def test_of_equally_tight_limits_the_slower_one_is_told() -> None:
    states = (state(Dimension.TOKENS, 10, 0, 6.0), state(Dimension.TOKENS, 20, 0, 60.0))
    assert dict(rate_headers(states))["x-ratelimit-limit-tokens"] == "20"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.9999, "1s"),
        (1.1, "1.1s"),
        (59.999, "59.999s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (90061.5, "25h1m1.5s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text


def test_a_reached_limit_is_told_with_its_figures_and_the_wait() -> None:
    by = claim(Dimension.TOKENS, 4000, 60, cost=700)
    error = refusal(refused(by, 12.5, remaining=300))
    assert type(error) is RateLimited
    assert error.message == (
        "Limit 'free' of 4000 tokens per minute is reached: this request needs 700, 300 are left; "
        "try again in 12.5s."
    )
    assert (error.retry_after_s, error.dimension, error.limit) == (12.5, "tokens", "free")
    assert dict(error.headers)["x-ratelimit-remaining-tokens"] == "300"


def test_nobody_is_told_to_wait_for_longer_than_the_window() -> None:
    """Q-CLOCK-STEP: of a sliding window the last of it may be whole only in the next one."""
    error = refusal(refused(claim(Dimension.REQUESTS, 10, 60), 66.0))
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 60.0
    assert "in 1m0s" in error.message


def test_the_message_of_a_concurrency_limit_makes_sense() -> None:
    error = refusal(refused(claim(Dimension.CONCURRENCY, 4, 0), 1.0))
    assert str(error).startswith("Limit 'free' of 4 requests at a time is reached")


def of_a_day(dimension: Dimension, amount: int, cost: int) -> Claim:
    day = Period(name="day:2026-12-01T00:00@UTC", ends_in_s=40_000.0)
    return replace(claim(dimension, amount, 0, cost=cost), period=day)


def test_a_days_allowance_is_a_quota_once_it_is_used_up() -> None:
    """Q-RESERVE-STREAM: while others have merely reserved the rest, it is worth a short wait."""
    verdict = refused(of_a_day(Dimension.TOKENS, 100, 7), 40_000.0)
    error = refusal(replace(verdict, is_used_up=True))
    assert isinstance(error, QuotaExhausted)
    assert error.retry_after_s == 40_000.0
    assert error.message.startswith("Limit 'free' of 100 tokens per day is reached")
    assert type(refusal(replace(verdict, retry_after_s=1.0))) is RateLimited


def test_money_is_told_in_the_currencys_units() -> None:
    verdict = refused(of_a_day(Dimension.COST, 2_500_000, 30), 9.0, remaining=17)
    assert str(refusal(replace(verdict, is_used_up=True))) == (
        "Limit 'free' of 2.5 of money per day is reached: this request needs 0.00003, "
        "0.000017 are left; try again in 9s."
    )


def test_headers_count_input_and_output_tokens_as_tokens() -> None:
    states = (
        state(Dimension.TOKENS, 4000, 3300, 1.0),
        state(Dimension.OUTPUT_TOKENS, 1000, 12, 1.0),
        state(Dimension.COST, 1000, 1, 1.0),
    )
    assert dict(rate_headers(states))["x-ratelimit-limit-tokens"] == "1000"


def test_a_request_larger_than_a_whole_limit_is_not_told_to_wait() -> None:
    by = claim(Dimension.TOKENS, 4000, 60, cost=5000)
    error = refusal(refused(by, math.inf))
    assert isinstance(error, InvalidRequest)
    assert error.message == (
        "This request needs 5000 tokens, but limit 'free' holds 4000 per minute; "
        "shorten it or lower max_tokens."
    )
    assert error.param == "max_tokens"


def test_an_odd_window_is_named_in_seconds() -> None:
    error = refusal(refused(claim(Dimension.REQUESTS, 5, 10), 3.0))
    assert "5 requests per 10 s" in str(error)
