"""Moments as people write them: `24h` ago, or a date or time in some time zone. Reads no clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

UNITS_S = {"m": 60, "h": 3600, "d": 86_400}

_AGE = re.compile(r"([1-9][0-9]{0,5})([mhd])", re.ASCII)


def moment(text: str, *, now_s: float, zone: tzinfo) -> float:
    """The Unix time of `24h` (before now), `2026-12-01` (its beginning) or `2026-12-01T10:00`.

    Dates and times without an offset of their own are the zone's.

    Raises:
        ValueError: it is none of these; the message says what to write.
    """
    if match := _AGE.fullmatch(text):
        return now_s - int(match[1]) * UNITS_S[match[2]]
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no time; write for example 24h, 7d, 2026-12-01 or 2026-12-01T10:00"
        raise ValueError(message) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).timestamp()


def time_zone(name: str) -> tzinfo:
    """A time zone by its name; UTC needs no time zone data on this machine.

    Raises:
        ValueError: there is none of this name; the message says what to write.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"{name!r} is no time zone here; write for example Europe/Berlin or UTC"
        raise ValueError(message) from None
