"""The sliding-window arithmetic at its edges; its behaviour over time is in the store contract."""

from __future__ import annotations

import pytest

from gateway.stores.base import Dimension, Granted, Period, Refused, Spend
from gateway.stores.window import (
    MICROSECONDS,
    RESERVED_RETRY_S,
    Counts,
    counted,
    decide,
    hold,
    microseconds,
)
from tests.contracts.stores import claim, slots, tokens

MINUTE_US = 60 * MICROSECONDS


@pytest.mark.parametrize(
    ("into_us", "expected"),
    [(0, 10), (1, 10), (6 * MICROSECONDS, 9), (6 * MICROSECONDS + 1, 9), (MINUTE_US - 1, 1)],
)
def test_what_is_left_of_the_previous_window_is_rounded_up(into_us: int, expected: int) -> None:
    assert counted(Counts(current=0, previous=10), MINUTE_US, 7 * MINUTE_US + into_us) == expected


def test_a_full_window_is_waited_out_and_a_tenth_of_the_next() -> None:
    outcome = decide([tokens(10, 1)], [Counts(current=10, previous=0)], 7 * MINUTE_US)
    assert isinstance(outcome, Refused)
    assert outcome.retry_after_s == 66.001


def test_a_slot_is_worth_a_short_wait_whoever_holds_it() -> None:
    outcome = decide([slots(2)], [Counts(current=2, previous=0)], 0)
    assert isinstance(outcome, Refused)
    assert outcome.retry_after_s == RESERVED_RETRY_S


def test_the_last_of_an_amount_is_granted() -> None:
    outcome = decide([tokens(10, 4)], [Counts(current=6, previous=0)], 0)
    assert isinstance(outcome, Granted)
    assert outcome.states[0].remaining == 0


@pytest.mark.parametrize(
    ("dimension", "charge"),
    [
        (Dimension.REQUESTS, 1),
        (Dimension.INPUT_TOKENS, 200),
        (Dimension.OUTPUT_TOKENS, 50),
        (Dimension.TOKENS, 250),
        (Dimension.COST, 7),
        (Dimension.CONCURRENCY, 0),
    ],
)
def test_settling_charges_each_dimension_its_own(dimension: Dimension, charge: int) -> None:
    (held,) = hold([claim(dimension)], now_us=0)
    assert held.charge(Spend(input_tokens=200, output_tokens=50, cost_micros=7)) == charge


def test_a_reading_is_rounded_to_the_nearest_microsecond() -> None:
    assert microseconds(1000.001) == 1_000_001_000


DAY = Period(name="day:2026-12-03@UTC", ends_in_s=3600.0)


def test_what_others_merely_reserved_is_worth_a_short_wait() -> None:
    """Case Q-RESERVE-STREAM: nobody is told that the day is used up while it is not."""
    asked = claim(Dimension.TOKENS, amount=100, cost=40, period=DAY)
    outcome = decide([asked], [Counts(current=90, reserved=30)], 0)
    assert isinstance(outcome, Refused)
    assert (outcome.retry_after_s, outcome.is_used_up) == (RESERVED_RETRY_S, False)


def test_a_period_that_is_used_up_is_waited_out() -> None:
    asked = claim(Dimension.TOKENS, amount=100, cost=40, period=DAY)
    outcome = decide([asked], [Counts(current=90, reserved=29)], 0)
    assert isinstance(outcome, Refused)
    assert (outcome.retry_after_s, outcome.is_used_up) == (3600.0, True)
    assert [(state.remaining, state.reset_s) for state in outcome.states] == [(10, 3600.0)]
