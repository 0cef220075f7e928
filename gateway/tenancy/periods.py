"""Which day or month of the calendar a moment lies in, and when that ends. Pure.

A day begins at a time of day in a time zone, a month with its first day. Where clocks change a day
has 23 or 25 hours. A time of day that a change leaves out is the moment it would have been without
the change; one that comes twice is its first.
"""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo

from gateway.policy.model import Reset
from gateway.stores.base import Period


def period_at(kind: str, reset: Reset, now_s: float) -> Period:
    """The day or the month that `now_s`, in Unix seconds, lies in.

    kind: "day" | "month".
    """
    today = datetime.fromtimestamp(now_s, _zone(reset.zone)).date()
    first = today if _begin_s(today, reset) <= now_s else today - timedelta(days=1)
    if kind == "day":
        end = first + timedelta(days=1)
    else:
        first = first.replace(day=1)
        end = (first + timedelta(days=31)).replace(day=1)
    since = f"{first.isoformat()}T{reset.hour:02}:{reset.minute:02}"
    zone = reset.zone.replace("/", ".")  # a slash divides the parts of a counter's name
    return Period(name=f"{kind}:{since}@{zone}", ends_in_s=_begin_s(end, reset) - now_s)


def _begin_s(day: date, reset: Reset) -> float:
    begin = time(reset.hour, reset.minute)
    return datetime.combine(day, begin, _zone(reset.zone)).timestamp()


@functools.cache  # of a policy's zones
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
