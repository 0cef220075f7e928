"""What tokens cost, against exact fractions; and prices as policies have them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from gateway.policy.load import parse
from gateway.policy.prices import MICROS, Price
from tests.gateway.policy.examples import TEXT, problems_after, problems_in

PRICED = TEXT.replace(
    "{engine: echo, delay_ms: 5}",
    "{engine: echo, delay_ms: 5, price: {input: 0.15, cached: 0.075, output: 0.60}}",
).replace("telemetry:", "currency: EUR\ntelemetry:")

MICRO_PRICES = st.integers(0, 10**12)
TOKENS = st.integers(0, 10**9)


@given(MICRO_PRICES, MICRO_PRICES, MICRO_PRICES, TOKENS, TOKENS, TOKENS)
def test_a_request_is_off_by_half_a_micro_unit_at_most(
    input_: int, cached: int, output: int, others: int, found: int, completion: int
) -> None:
    cost = Price(input=input_, cached=cached, output=output).cost_micros(
        prompt_tokens=others + found, cached_tokens=found, completion_tokens=completion
    )
    exact = Fraction(others * input_ + found * cached + completion * output, MICROS)
    assert abs(cost - exact) <= Fraction(1, 2)


def test_a_half_is_rounded_up() -> None:
    price = Price(input=500_000, cached=0, output=0)
    costs = [
        price.cost_micros(prompt_tokens=tokens, cached_tokens=0, completion_tokens=0)
        for tokens in (1, 2, 3)
    ]
    assert costs == [1, 1, 2]


def test_a_million_tokens_cost_what_the_policy_says() -> None:
    policy = parse(PRICED, "policy.yaml")
    price = policy.backends["spare"].price
    assert policy.currency == "EUR"
    assert price == Price(input=150_000, cached=75_000, output=600_000)
    million = price.cost_micros(
        prompt_tokens=2_000_000, cached_tokens=1_000_000, completion_tokens=1_000_000
    )
    assert million == 150_000 + 75_000 + 600_000


def test_without_a_word_on_them_cached_tokens_cost_as_others() -> None:
    policy = parse(PRICED.replace("cached: 0.075, ", ""), "policy.yaml")
    assert policy.backends["spare"].price == Price(input=150_000, cached=150_000, output=600_000)


def test_a_backend_without_a_price_has_none_and_the_engine_never_sees_one() -> None:
    backends = parse(PRICED, "policy.yaml").backends
    assert backends["small"].price is None
    assert backends["spare"].options == {"delay_ms": 5}


def test_a_price_needs_a_currency() -> None:
    (problem,) = problems_in(PRICED.replace("currency: EUR\n", ""))
    assert (problem.code, problem.write) == ("missing-key", "currency: USD")
    assert "backend 'spare' has a price" in problem.message
    assert (problem.span.line, problem.span.width) == (4, len("price"))


@pytest.mark.parametrize(
    ("new", "code", "message", "write"),
    [
        ("{input: 0.15}", "missing-key", "backends.spare.price has no 'output'", "output: 0.60"),
        ("{input: -1, output: 1}", "bad-value", "price.input: -1 is not a price", ""),
        ("{input: 0.0000001, output: 1}", "bad-value", "more than six decimals", ""),
        ("{input: 1, outptu: 1}", "unknown-key", "'outptu' is not a key of", "output: 1"),
        ("free", "bad-value", "free is not a map", "price: {input: 0.15, output: 0.60}"),
    ],
)
def test_says_what_is_wrong_with_a_price(new: str, code: str, message: str, write: str) -> None:
    problems = problems_in(PRICED.replace("{input: 0.15, cached: 0.075, output: 0.60}", new))
    found = [problem for problem in problems if message in problem.message]
    assert [(problem.code, problem.write) for problem in found] == [(code, write)]


def test_a_currency_is_a_code() -> None:
    (problem,) = problems_after("telemetry:", "currency: dollars\ntelemetry:")
    assert "'dollars' is not a currency's code" in problem.message
