"""Counts, rates, durations, weights and prices as people write them: `40k`, `60/min`, `500ms`.

A unit is compulsory wherever a number could be read in two ways, and the refusal says what to
write. Values come typed by YAML: a bare number is an int or float, all else is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import cast
from zoneinfo import available_timezones

from gateway.policy.match import MINUTES_A_DAY
from gateway.policy.model import Rate, Reset
from gateway.policy.prices import MICROS
from gateway.policy.problems import Refusal, did_you_mean, nearest

MAX_COUNT = 10**15  # counters add up many of them in 64 bits
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # apart further than this, one plan would starve the other

MAX_PRICE = 1_000_000  # per million tokens: with six decimals, 13 digits, of which a float keeps 15

MULTIPLIERS: Mapping[str, int] = {"": 1, "k": 1_000, "M": 1_000_000}
WINDOWS_S: Mapping[str, int] = {"s": 1, "min": 60, "h": 3600}
DURATIONS_MS: Mapping[str, int] = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}

PERIODS = ("day", "month")

_MONEY = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_RESET = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?: +([A-Za-z0-9_+/-]+))?")
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")
_NEAR_MULTIPLIERS = {"K": "k", "m": "M", "mio": "M"}
_NEAR_WINDOWS = {
    "m": "min", "mins": "min", "minute": "min", "minutes": "min", "M": "min",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "hr": "h", "hour": "h", "hours": "h", "H": "h",
    "d": "day", "days": "day", "D": "day", "mo": "month", "months": "month",
}  # fmt: skip
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%?")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_NEAR_DURATIONS = {
    "msec": "ms", "millis": "ms", "milliseconds": "ms",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m", "M": "m",
    "hr": "h", "hour": "h", "hours": "h", "H": "h",
}  # fmt: skip


def parse_count(value: object) -> int:
    """`512`, `40k` or `1M`, at least 1.

    Raises:
        Refusal: bad-unit, bad-value.
    """
    number, unit = _split(value, "a count such as 512, 40k or 1M")
    if unit not in MULTIPLIERS:
        raise _bad_unit(number, unit, MULTIPLIERS, _NEAR_MULTIPLIERS)
    count = Decimal(number) * MULTIPLIERS[unit]
    if count != int(count) or not 1 <= count <= MAX_COUNT:
        raise Refusal("bad-value", f"{value} is not a whole number from 1 to {MAX_COUNT}")
    return int(count)


def parse_rate(value: object) -> Rate:
    """`60/min` as 60 in 60 seconds, `5M/day` as 5 million in each day.

    Raises:
        Refusal: missing-unit, bad-unit, bad-value.
    """
    amount, unit = _per(value, parse_count)
    return Rate(parse_count(amount), WINDOWS_S.get(unit, 0), unit if unit in PERIODS else "")


def parse_cost(value: object) -> Rate:
    """`200/month` or `0.50/day`, in millionths of the currency.

    Raises:
        Refusal: missing-unit, bad-unit, bad-value.
    """
    amount, unit = _per(value, _micros)
    return Rate(_micros(amount), WINDOWS_S.get(unit, 0), unit if unit in PERIODS else "")


def _per(value: object, parse: Callable[[object], int]) -> tuple[str, str]:
    """The amount and the unit of time of `AMOUNT/UNIT`."""
    amount, slash, unit = str(value).partition("/")
    if not slash:
        parse(value)
        raise Refusal("missing-unit", f"{value} does not say per what", write=f"{value}/min")
    amount, unit = amount.strip(), unit.strip()
    if unit not in WINDOWS_S and unit not in PERIODS:
        units = dict.fromkeys((*WINDOWS_S, *PERIODS), 0)
        raise _bad_unit(f"{amount}/", unit, units, _NEAR_WINDOWS)
    return amount, unit


def _micros(value: object) -> int:
    number = None if isinstance(value, bool) else _MONEY.fullmatch(str(value).strip())
    micros = Decimal(number[0]) * MICROS if number else Decimal(0)
    if not 1 <= micros <= MAX_COUNT:
        raise Refusal("bad-value", f"{value} is not an amount of money such as 200 or 0.50")
    return int(micros)


def parse_percents(value: object) -> tuple[int, ...]:
    """`80%`, or a list of such, ascending.

    Raises:
        Refusal: missing-unit, bad-value.
    """
    items = cast(list[object], value) if isinstance(value, list) else [value]
    percents: set[int] = set()
    for item in items:
        number, percent = str(item).removesuffix("%").strip(), str(item).endswith("%")
        if not percent and number.isdecimal():
            raise Refusal("missing-unit", f"{item} has no unit", write=f"{number}%")
        if not number.isdecimal() or not 1 <= int(number) <= 100:
            raise Refusal("bad-value", f"{item} is not a share from 1% to 100%", write="80%")
        percents.add(int(number))
    return tuple(sorted(percents))


def parse_reset(value: object) -> Reset:
    """`00:00 Europe/Berlin` or `06:30`, which is in UTC: when days and months begin.

    Raises:
        Refusal: bad-value.
    """
    found = _RESET.fullmatch(str(value).strip())
    if found is None:
        message = f"{value} is not a time of day and a time zone"
        raise Refusal("bad-value", message, write='"00:00 Europe/Berlin"')
    return Reset(int(found[1]), int(found[2]), parse_zone(found[3] or "UTC"))


def parse_zone(value: object) -> str:
    """`Europe/Berlin`: a name of the time zone database.

    Raises:
        Refusal: bad-value.
    """
    zone = str(value)
    if zone != "UTC" and zone not in available_timezones():
        hint = did_you_mean(nearest(zone, available_timezones()))
        message = f"'{zone}' is no time zone here"
        raise Refusal("bad-value", message, hint=hint, write="" if hint else "Europe/Berlin")
    return zone


def parse_clock(value: object) -> int:
    """`06:30` as the minute of the day; `24:00` is its end.

    Raises:
        Refusal: bad-value.
    """
    text = str(value).strip()
    if text == "24:00":
        return MINUTES_A_DAY
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise Refusal("bad-value", f"{value} is not a time of day", write='"06:30"')
    return int(found[1]) * 60 + int(found[2])


def parse_duration(value: object) -> float:
    """`500ms`, `2s` or `1m` in seconds, over 0.

    Raises:
        Refusal: missing-unit, bad-unit, bad-value.
    """
    number, unit = _split(value, "a duration such as 500ms, 2s or 1m")
    if not unit:
        raise Refusal("missing-unit", f"{value} has no unit", write=f"{number}s")
    if unit not in DURATIONS_MS:
        raise _bad_unit(number, unit, DURATIONS_MS, _NEAR_DURATIONS)
    duration_s = float(Decimal(number) * DURATIONS_MS[unit] / 1000)
    if duration_s <= 0:
        raise Refusal("bad-value", f"{value} is no time at all; it must be over 0")
    return duration_s


def parse_weight(value: object) -> float:
    """`1` or `2.5`: how much of a share, against others; 0.01 to 100.

    Raises:
        Refusal: bad-value.
    """
    weight = math.nan  # which is in no range
    if isinstance(value, int | float) and not isinstance(value, bool):
        weight = float(value)
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        message = f"{value} is not a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
        raise Refusal("bad-value", message, write="1")
    return weight


def parse_share(value: object) -> float:
    """`90`, of a split, or `90%`: over 0, and 100 at most.

    Raises:
        Refusal: bad-value.
    """
    number = None if isinstance(value, bool) else _SHARE.fullmatch(str(value).strip())
    share = float(number[1]) if number else 0.0
    if not 0 < share <= 100:
        raise Refusal("bad-value", f"{value} is not a share over 0 and up to 100", write="10")
    return share


def parse_percent(value: object) -> float:
    """`10%` or `0.5%` as 0.1 or 0.005: over 0%, and 100% at most.

    Raises:
        Refusal: missing-unit, bad-value.
    """
    share = parse_share(value)
    if not str(value).strip().endswith("%"):
        raise Refusal("missing-unit", f"{value} has no unit", write=f"{value}%")
    return share / 100


def parse_price(value: object) -> int:
    """`0.15`, per million tokens, as 150000: in millionths of the currency, exactly.

    Raises:
        Refusal: bad-value.
    """
    price = Decimal(-1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        price = Decimal(str(value))  # of a float, the digits as they were written
    if not 0 <= price <= MAX_PRICE:
        message = f"{value} is not a price per million tokens, from 0 to {MAX_PRICE}"
        raise Refusal("bad-value", message)
    micros = price * MICROS
    if micros != int(micros):
        raise Refusal("bad-value", f"{value} has more than six decimals")
    return int(micros)


def _split(value: object, wanted: str) -> tuple[str, str]:
    """The number and its unit, both as text."""
    found = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value).strip())
    if found is None:
        raise Refusal("bad-value", f"{value} is not {wanted}")
    return found[1], found[2]


def _bad_unit(number: str, unit: str, known: Mapping[str, int], near: Mapping[str, str]) -> Refusal:
    names = ", ".join(name for name in known if name)
    suggestion = near.get(unit, "")
    return Refusal(
        "bad-unit",
        f"'{unit}' is not a unit here; the units are {names}",
        hint=did_you_mean(suggestion),
        write=f"{number}{suggestion}" if suggestion else "",
    )
