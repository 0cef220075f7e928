"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.usage.period import moment

NOW_S = datetime(2026, 12, 3, 12, tzinfo=UTC).timestamp()
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", "2026-12-03T10:30Z"),
        ("24h", "2026-12-02T12:00Z"),
        ("7d", "2026-11-26T12:00Z"),
        ("2026-12-01", "2026-11-30T23:00Z"),
        ("2026-07-01", "2026-06-30T22:00Z"),
        ("2026-12-01T10:00", "2026-12-01T09:00Z"),
        ("2026-12-01T10:00Z", "2026-12-01T10:00Z"),
        ("2026-12-01T10:00+05:45", "2026-12-01T04:15Z"),
    ],
)
def test_a_moment_is_an_age_or_a_time_of_the_zone(text: str, expected: str) -> None:
    found_s = moment(text, now_s=NOW_S, zone=BERLIN)
    assert datetime.fromtimestamp(found_s, UTC) == datetime.fromisoformat(expected)


@pytest.mark.parametrize("text", ["", "0h", "24", "1w", "-1h", "٣d", "tomorrow", "2026-13-01"])
def test_other_texts_are_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 24h, 7d, 2026-12-01"):
        moment(text, now_s=NOW_S, zone=BERLIN)
