"""The sliding-window arithmetic at its edges; its behaviour over time is in the store contract."""

from __future__ import annotations

import pytest

from gateway.stores.base import Dimension, Granted, Refused
from gateway.stores.window import (
    CONCURRENCY_RETRY_S,
    MICROSECONDS,
    Counts,
    Held,
    counted,
    decide,
    microseconds,
)
from tests.contracts.stores import slots, tokens

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
    assert outcome.retry_after_s == CONCURRENCY_RETRY_S


def test_the_last_of_an_amount_is_granted() -> None:
    outcome = decide([tokens(10, 4)], [Counts(current=6, previous=0)], 0)
    assert isinstance(outcome, Granted)
    assert outcome.states[0].remaining == 0


@pytest.mark.parametrize(
    ("dimension", "charge"),
    [(Dimension.REQUESTS, 1), (Dimension.TOKENS, 250), (Dimension.CONCURRENCY, 0)],
)
def test_settling_charges_each_dimension_its_own(dimension: Dimension, charge: int) -> None:
    held = Held(counter="any", dimension=dimension, window=0, cost=1)
    assert held.charge(250) == charge


def test_a_reading_is_rounded_to_the_nearest_microsecond() -> None:
    assert microseconds(1000.001) == 1_000_001_000
