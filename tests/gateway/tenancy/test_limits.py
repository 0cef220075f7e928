"""From plan limits to claims, and from verdicts to headers and errors."""

from __future__ import annotations

import math

import pytest

from gateway.errors import InvalidRequest, QuotaExhausted, RateLimited
from gateway.policy.model import Limit
from gateway.stores.base import Claim, Dimension, LimitState, Refused
from gateway.tenancy.limits import claims_for, go_duration, rate_headers, refusal
from gateway.tenancy.tenants import Principal, Tenant
from tests.contracts.stores import spent

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


def test_every_part_of_every_limit_becomes_a_claim() -> None:
    limits = (
        Limit(name="free", requests=(60, 60), tokens=(4000, 60), concurrent=2),
        Limit(name="daily", tokens=(1_000_000, 86_400)),
    )
    claims = claims_for(limits, ACME, most=spent(700))
    assert [(one.limit, one.dimension, one.amount, one.window_s, one.cost) for one in claims] == [
        ("free", Dimension.REQUESTS, 60, 60, 1),
        ("free", Dimension.TOKENS, 4000, 60, 700),
        ("free", Dimension.CONCURRENCY, 2, 0, 1),
        ("daily", Dimension.TOKENS, 1_000_000, 86_400, 700),
    ]
    assert {one.scope for one in claims} == {"tenant:tenant_1"}


def test_a_plan_without_limits_claims_nothing() -> None:
    assert claims_for((), ACME, most=spent(700)) == ()
    assert claims_for((Limit(name="none"),), ACME, most=spent(700)) == ()


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


def test_a_days_allowance_is_a_quota() -> None:
    error = refusal(refused(claim(Dimension.TOKENS, 100, 86_400), 40_000.0))
    assert type(error) is QuotaExhausted


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
