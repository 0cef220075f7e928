from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from gateway.policy.model import Rate, Reset
from gateway.policy.problems import Refusal
from gateway.policy.units import (
    MAX_COUNT,
    parse_cost,
    parse_count,
    parse_duration,
    parse_percents,
    parse_price,
    parse_rate,
    parse_reset,
    parse_weight,
)


@pytest.mark.parametrize(
    ("written", "count"),
    [(1, 1), ("512", 512), ("40k", 40_000), ("1M", 1_000_000), ("1.5k", 1_500), ("40 k", 40_000)],
)
def test_reads_counts(written: object, count: int) -> None:
    assert parse_count(written) == count


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("60/min", Rate(60, 60)),
        ("10/s", Rate(10, 1)),
        ("40k/min", Rate(40_000, 60)),
        ("5 / h", Rate(5, 3600)),
        ("5M/day", Rate(5_000_000, 0, "day")),
        ("1/month", Rate(1, 0, "month")),
    ],
)
def test_reads_rates_with_their_window_in_seconds_or_their_period(written: str, rate: Rate) -> None:
    assert parse_rate(written) == rate


@pytest.mark.parametrize(
    ("written", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("1m", 60.0), ("1.5s", 1.5)]
)
def test_reads_durations_in_seconds(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", [0.01, 1, 2.5, 100])
def test_reads_weights(written: float) -> None:
    assert parse_weight(written) == written


@pytest.mark.parametrize(
    ("written", "micros"),
    [(0, 0), (3, 3_000_000), (0.15, 150_000), (0.000001, 1), (999_999.999999, 999_999_999_999)],
)
def test_reads_prices_in_millionths(written: float, micros: int) -> None:
    assert parse_price(written) == micros


@given(st.integers(0, 10**12))
def test_a_price_is_read_as_it_was_written_to_the_last_decimal(micros: int) -> None:
    written = f"{micros // 10**6}.{micros % 10**6:06}"
    assert parse_price(float(written)) == micros


@pytest.mark.parametrize(
    ("parse", "written", "code", "write"),
    [
        (parse_price, -0.1, "bad-value", ""),
        (parse_price, 1_000_001, "bad-value", ""),
        (parse_price, 0.0000001, "bad-value", ""),
        (parse_price, "0.15", "bad-value", ""),
        (parse_price, "free", "bad-value", ""),
        (parse_price, True, "bad-value", ""),
        (parse_price, None, "bad-value", ""),
        (parse_count, "40K", "bad-unit", "40k"),
        (parse_count, "40m", "bad-unit", "40M"),
        (parse_count, "40 apples", "bad-unit", ""),
        (parse_count, 0, "bad-value", ""),
        (parse_count, -1, "bad-value", ""),
        (parse_count, 1.5, "bad-value", ""),
        (parse_count, "1.0001k", "bad-value", ""),
        (parse_count, True, "bad-value", ""),
        (parse_count, None, "bad-value", ""),
        (parse_count, "10_000", "bad-value", ""),
        (parse_count, MAX_COUNT + 1, "bad-value", ""),
        (parse_rate, 60, "missing-unit", "60/min"),
        (parse_rate, "40k", "missing-unit", "40k/min"),
        (parse_rate, "60/m", "bad-unit", "60/min"),
        (parse_rate, "60/hour", "bad-unit", "60/h"),
        (parse_rate, "60/fortnight", "bad-unit", ""),
        (parse_rate, "5M/d", "bad-unit", "5M/day"),
        (parse_cost, "200", "missing-unit", "200/min"),
        (parse_cost, "200 EUR/month", "bad-value", ""),
        (parse_cost, "0.0000001/day", "bad-value", ""),
        (parse_percents, 80, "missing-unit", "80%"),
        (parse_percents, ["50%", "101%"], "bad-value", "80%"),
        (parse_reset, "midnight", "bad-value", '"00:00 Europe/Berlin"'),
        (parse_reset, "24:00", "bad-value", '"00:00 Europe/Berlin"'),
        (parse_rate, "0/min", "bad-value", ""),
        (parse_rate, "/min", "bad-value", ""),
        (parse_rate, "60/min/s", "bad-unit", ""),
        (parse_weight, 0, "bad-value", "1"),
        (parse_weight, -1, "bad-value", "1"),
        (parse_weight, 0.009, "bad-value", "1"),
        (parse_weight, 100.5, "bad-value", "1"),
        (parse_weight, float("inf"), "bad-value", "1"),
        (parse_weight, float("nan"), "bad-value", "1"),
        (parse_weight, True, "bad-value", "1"),
        (parse_weight, "2x", "bad-value", "1"),
        (parse_weight, None, "bad-value", "1"),
        (parse_duration, 30, "missing-unit", "30s"),
        (parse_duration, "0.5", "missing-unit", "0.5s"),
        (parse_duration, "5min", "bad-unit", "5m"),
        (parse_duration, "1d", "bad-unit", ""),
        (parse_duration, "0s", "bad-value", ""),
        (parse_duration, "12:30", "bad-value", ""),
        (parse_duration, [1], "bad-value", ""),
    ],
)
def test_refuses_saying_what_to_write(
    parse: Callable[[object], object], written: object, code: str, write: str
) -> None:
    with pytest.raises(Refusal) as caught:
        parse(written)
    assert (caught.value.code, caught.value.write) == (code, write)


@given(st.integers(1, 10**9), st.sampled_from(["", "k", "M"]), st.sampled_from(["s", "min", "h"]))
def test_a_rate_is_its_count_over_its_window(number: int, unit: str, window: str) -> None:
    rate = parse_rate(f"{number}{unit}/{window}")
    assert rate.amount == parse_count(f"{number}{unit}")
    assert rate.window_s == {"s": 1, "min": 60, "h": 3600}[window]


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.lists(st.integers())))
def test_any_value_is_read_or_refused(value: object) -> None:
    for parse in (parse_count, parse_rate, parse_duration, parse_weight):
        with suppress(Refusal):
            assert parse(value)


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("200/month", Rate(200_000_000, 0, "month")),
        ("0.50/day", Rate(500_000, 0, "day")),
        ("0.000001/h", Rate(1, 3600)),
    ],
)
def test_reads_amounts_of_money_in_millionths(written: str, rate: Rate) -> None:
    assert parse_cost(written) == rate


@pytest.mark.parametrize(
    ("written", "percents"), [("80%", (80,)), (["80%", "50%", "80%"], (50, 80))]
)
def test_reads_shares_in_order(written: object, percents: tuple[int, ...]) -> None:
    assert parse_percents(written) == percents


@pytest.mark.parametrize(
    ("written", "reset"),
    [
        ("00:00 Europe/Berlin", Reset(0, 0, "Europe/Berlin")),
        ("06:30", Reset(6, 30)),
        ("23:59  UTC", Reset(23, 59)),
    ],
)
def test_reads_when_days_begin(written: str, reset: Reset) -> None:
    assert parse_reset(written) == reset


def test_a_time_zone_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(Refusal, match="'Europe/Berln' is no time zone") as caught:
        parse_reset("00:00 Europe/Berln")
    assert "Europe/Berlin" in caught.value.hint
