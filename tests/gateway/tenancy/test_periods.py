"""Days and months: every moment lies in exactly one, and it is known when that ends."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from gateway.policy.model import Reset
from gateway.tenancy.periods import period_at

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_S = 3600.0


def moment_s(*parts: int, fold: int = 0) -> float:
    year, month, day, hour, minute = parts
    return datetime(year, month, day, hour, minute, tzinfo=BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("kind", "reset", "moment", "name", "ends_in_h"),
    [
        ("day", Reset(0, 0, "Europe/Berlin"), (2026, 12, 3, 22, 0), "2026-12-03T00:00", 2),
        ("day", Reset(6, 30, "Europe/Berlin"), (2026, 12, 3, 6, 0), "2026-12-02T06:30", 0.5),
        ("day", Reset(0, 0, "Europe/Berlin"), (2026, 3, 29, 0, 0), "2026-03-29T00:00", 23),
        ("day", Reset(0, 0, "Europe/Berlin"), (2026, 10, 25, 0, 0), "2026-10-25T00:00", 25),
        ("month", Reset(0, 0, "Europe/Berlin"), (2028, 2, 29, 23, 0), "2028-02-01T00:00", 1),
        ("month", Reset(6, 0, "Europe/Berlin"), (2027, 1, 1, 5, 0), "2026-12-01T06:00", 1),
        ("month", Reset(0, 0, "Europe/Berlin"), (2026, 12, 31, 23, 0), "2026-12-01T00:00", 1),
    ],
)
def test_a_period_is_the_one_of_the_calendar(
    kind: str, reset: Reset, moment: tuple[int, ...], name: str, ends_in_h: float
) -> None:
    period = period_at(kind, reset, moment_s(*moment))
    assert period.name == f"{kind}:{name}@Europe.Berlin"
    assert period.ends_in_s == ends_in_h * HOUR_S


def test_a_time_that_clocks_leave_out_and_one_that_comes_twice_begin_one_day_each() -> None:
    """On 29 March there is no 02:30; on 25 October there are two."""
    reset = Reset(2, 30, "Europe/Berlin")
    before = period_at("day", reset, moment_s(2026, 3, 29, 1, 59))
    assert before.name == "day:2026-03-28T02:30@Europe.Berlin"
    between = period_at("day", reset, moment_s(2026, 10, 25, 2, 45))
    again = period_at("day", reset, moment_s(2026, 10, 25, 2, 15, fold=1))
    assert between.name == again.name == "day:2026-10-25T02:30@Europe.Berlin"


@given(
    st.sampled_from(["day", "month"]),
    st.integers(0, 23),
    st.integers(0, 59),
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]),
    st.integers(0, 4_000_000_000),
)
def test_every_moment_lies_in_one_period_that_ends_when_it_says(
    kind: str, hour: int, minute: int, zone: str, now_s: int
) -> None:
    reset = Reset(hour, minute, zone)
    period = period_at(kind, reset, now_s)
    end_s = now_s + period.ends_in_s
    assert period.ends_in_s > 0
    assert period_at(kind, reset, end_s - 1).name == period.name
    following = period_at(kind, reset, end_s)
    assert following.name > period.name
    assert following.ends_in_s >= 22 * HOUR_S
