"""Usage added up: by days of any time zone, in each currency apart, and nothing lost."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from gateway.usage.report import QUARTER_S, Amounts, Dimension, Line, Sum, report

BERLIN = ZoneInfo("Europe/Berlin")


def quarter(text: str) -> int:
    """The number of the quarter of an hour that a time is in."""
    return int(datetime.fromisoformat(text).timestamp()) // QUARTER_S


def one(*names: str, at: str | None = None, currency: str = "EUR", tokens: int = 1) -> Sum:
    return Sum(
        names=names,
        quarter=None if at is None else quarter(at),
        currency=currency,
        amounts=Amounts(num_requests=1, prompt_tokens=tokens),
    )


@pytest.mark.parametrize(
    ("zone", "day"),
    [(UTC, "2026-12-01"), (BERLIN, "2026-12-02"), (ZoneInfo("Asia/Kathmandu"), "2026-12-02")],
)
def test_a_day_is_one_of_the_zone_asked_for(zone: ZoneInfo, day: str) -> None:
    made = report([Dimension.DAY], [one(at="2026-12-01T23:45Z")], zone)
    assert [line.names for line in made.lines] == [(day,)]


def test_the_hour_that_comes_twice_in_autumn_is_two_hours() -> None:
    sums = [one(at="2026-10-25T00:30Z"), one(at="2026-10-25T01:30Z")]
    made = report([Dimension.HOUR], sums, BERLIN)
    assert [line.names for line in made.lines] == [
        ("2026-10-25T02:00+01:00",),
        ("2026-10-25T02:00+02:00",),
    ]


def test_names_come_in_the_order_asked_for_whatever_times_are_among_them() -> None:
    sums = [
        one("acme", "chat", at="2026-12-01T10:15Z"),
        one("acme", "chat", at="2026-12-01T20:00Z"),
    ]
    made = report([Dimension.TENANT, Dimension.DAY, Dimension.MODEL], sums, UTC)
    assert made.lines == (
        Line(
            names=("acme", "2026-12-01", "chat"),
            currency="EUR",
            amounts=Amounts(num_requests=2, prompt_tokens=2),
        ),
    )


def test_currencies_are_never_added() -> None:
    sums = [one("acme", currency=currency) for currency in ("USD", "EUR", "")]
    made = report([Dimension.TENANT], sums, UTC)
    assert [line.currency for line in made.lines] == ["", "EUR", "USD"]
    assert [total.currency for total in made.totals] == ["", "EUR", "USD"]


def test_nothing_is_a_report_without_lines() -> None:
    made = report([Dimension.TENANT], [], UTC)
    assert (made.lines, made.totals) == ((), ())


AMOUNTS = st.builds(
    Amounts,
    num_requests=st.integers(1, 9),
    prompt_tokens=st.integers(0, 10**12),
    cached_tokens=st.integers(0, 10**12),
    completion_tokens=st.integers(0, 10**12),
    estimated_tokens=st.integers(0, 10**12),
    cost_micros=st.integers(0, 10**15),
    num_unpriced=st.integers(0, 9),
)
SUMS = st.builds(
    Sum,
    names=st.tuples(st.sampled_from(["acme", "globex"])),
    quarter=st.integers(0, 4_000_000),
    currency=st.sampled_from(["EUR", "USD"]),
    amounts=AMOUNTS,
)


@given(st.lists(SUMS), st.sampled_from([UTC, BERLIN]))
def test_lines_and_totals_hold_all_that_came_in(sums: list[Sum], zone: ZoneInfo) -> None:
    made = report([Dimension.DAY, Dimension.TENANT], sums, zone)
    for lines in (made.lines, made.totals):
        for currency in ("EUR", "USD"):
            came_in = sum((s.amounts for s in sums if s.currency == currency), Amounts())
            assert sum((x.amounts for x in lines if x.currency == currency), Amounts()) == came_in


def test_the_estimated_share_is_of_tokens() -> None:
    assert (
        Amounts(prompt_tokens=30, completion_tokens=10, estimated_tokens=10).estimated_share == 0.25
    )
    assert Amounts().estimated_share == 0.0
