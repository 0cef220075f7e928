from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from gateway.policy.match import EVERYTHING, Match, Names, Range, TimeOfDay
from tests.gateway.policy.examples import facts

NIGHT = TimeOfDay(22 * 60, 6 * 60, zone="Europe/Berlin")
FRIDAY_NIGHT = TimeOfDay(22 * 60, 6 * 60, frozenset({4}), "Europe/Berlin")
OFFICE_HOURS = TimeOfDay(9 * 60, 17 * 60, frozenset(range(5)), "Europe/Berlin")


def berlin(day: int, clock: str) -> float:
    """Of December 2026, whose 4th is a Friday."""
    hour, minute = map(int, clock.split(":"))
    return datetime(2026, 12, day, hour, minute, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


@pytest.mark.parametrize(
    ("time", "day", "clock", "holds"),
    [
        (NIGHT, 4, "21:59", False),
        (NIGHT, 4, "22:00", True),
        (NIGHT, 5, "00:00", True),
        (NIGHT, 5, "05:59", True),
        (NIGHT, 5, "06:00", False),
        (FRIDAY_NIGHT, 4, "23:00", True),
        (FRIDAY_NIGHT, 5, "03:00", True),  # Saturday's small hours belong to Friday's night
        (FRIDAY_NIGHT, 4, "03:00", False),
        (FRIDAY_NIGHT, 5, "23:00", False),
        (OFFICE_HOURS, 4, "09:00", True),
        (OFFICE_HOURS, 4, "17:00", False),
        (OFFICE_HOURS, 5, "12:00", False),
        (TimeOfDay(days=frozenset({4}), zone="Europe/Berlin"), 4, "23:59", True),
    ],
)
def test_knows_the_time_of_day_of_a_zone(
    time: TimeOfDay, day: int, clock: str, holds: bool
) -> None:
    assert time.holds(berlin(day, clock)) is holds


def test_a_zone_with_summer_time_keeps_its_clock() -> None:
    """10:00 in Berlin is 09:00 UTC in winter and 08:00 in summer."""
    morning = TimeOfDay(10 * 60, 11 * 60, zone="Europe/Berlin")
    winter = datetime(2026, 1, 15, 9, 30, tzinfo=ZoneInfo("UTC")).timestamp()
    summer = datetime(2026, 7, 15, 8, 30, tzinfo=ZoneInfo("UTC")).timestamp()
    assert morning.holds(winter)
    assert morning.holds(summer)
    assert not morning.holds(summer + 3600)


@given(st.integers(0, 1439), st.integers(0, 1440), st.floats(0, 4e9), st.sets(st.integers(0, 6)))
def test_what_is_not_in_a_stretch_is_in_the_rest_of_the_day(
    start: int, stop: int, time_s: float, days: set[int]
) -> None:
    if start in (stop, stop - 1440):
        return
    inside = TimeOfDay(start, stop, frozenset(range(7)))
    outside = TimeOfDay(stop % 1440, start or 1440)
    assert inside.holds(time_s) is not outside.holds(time_s)
    some_days = TimeOfDay(start, stop, frozenset(days))
    assert not some_days.holds(time_s) or inside.holds(time_s)


@pytest.mark.parametrize(
    ("names", "text", "holds"),
    [
        (Names(("a", "b*")), "a", True),
        (Names(("a", "b*")), "bc", True),
        (Names(("a", "b*")), "c", False),
        (Names(("a", "b*"), negated=True), "bc", False),
        (Names(("a", "b*"), negated=True), "c", True),
        (Names(("a",), negated=True), "", True),
    ],
)
def test_names_are_any_of_them_or_none_of_them(names: Names, text: str, holds: bool) -> None:
    assert names.hold(text) is holds


def test_a_range_holds_of_what_is_known() -> None:
    assert Range(1, 3).holds(1)
    assert Range(1, 3).holds(3)
    assert not Range(1, 3).holds(4)
    assert not Range(None, 3).holds(None)


def test_everything_is_matched_by_what_asks_nothing() -> None:
    assert EVERYTHING.first_failing(facts(prompt_tokens=None), "chat") == ""


def test_failing_keys_come_in_the_order_of_the_file_format() -> None:
    match = Match(
        models=Names(("x",)),
        tenants=Names(("x",)),
        plans=Names(("x",)),
        endpoints=Names(("generate",)),
        stream=True,
        headers=(("x", Names(("*",))),),
        tags=(("x", Names(("*",))),),
        prompt_tokens=Range(1000),
        max_tokens=Range(1000),
        time=TimeOfDay(1, 2),
    )
    keys = list(match.failing_keys(facts(), "chat"))
    assert keys == [
        "model", "tenant", "plan", "endpoint", "stream", "header", "tags", "prompt_tokens",
        "max_tokens", "time",
    ]  # fmt: skip
    assert match.first_failing(facts(), "chat") == "model"
