"""Counts, rates, durations, weights and prices as people write them: `40k`, `60/min`, `500ms`.

A unit is compulsory wherever a number could be read in two ways, and the refusal says what to
write. Values come typed by YAML: a bare number is an int or float, all else is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from gateway.policy.prices import MICROS
from gateway.policy.problems import Refusal, did_you_mean

MAX_COUNT = 10**15  # counters add up many of them in 64 bits
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # apart further than this, one plan would starve the other

MAX_PRICE = 1_000_000  # per million tokens: with six decimals, 13 digits, of which a float keeps 15

MULTIPLIERS: Mapping[str, int] = {"": 1, "k": 1_000, "M": 1_000_000}
WINDOWS_S: Mapping[str, int] = {"s": 1, "min": 60, "h": 3600}
DURATIONS_MS: Mapping[str, int] = {"ms": 1, "s": 1_000, "m": 60_000}

_NOT_YET_WINDOWS = ("day", "month")
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")
_NEAR_MULTIPLIERS = {"K": "k", "m": "M", "mio": "M"}
_NEAR_WINDOWS = {
    "m": "min", "mins": "min", "minute": "min", "minutes": "min", "M": "min",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "hr": "h", "hour": "h", "hours": "h", "H": "h",
}  # fmt: skip
_NEAR_DURATIONS = {
    "msec": "ms", "millis": "ms", "milliseconds": "ms",
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "min": "m", "mins": "m", "minute": "m", "minutes": "m", "M": "m",
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


def parse_rate(value: object) -> tuple[int, int]:
    """`60/min` as (60, 60): the amount, and the window in seconds.

    Raises:
        Refusal: missing-unit, bad-unit, bad-value, not-supported-yet.
    """
    amount, slash, unit = str(value).partition("/")
    if not slash:
        parse_count(value)
        raise Refusal("missing-unit", f"{value} does not say per what", write=f"{value}/min")
    amount, unit = amount.strip(), unit.strip()
    if unit in _NOT_YET_WINDOWS:
        raise Refusal("not-supported-yet", f"limits per {unit} are not supported yet")
    if unit not in WINDOWS_S:
        raise _bad_unit(f"{amount}/", unit, WINDOWS_S, _NEAR_WINDOWS)
    return parse_count(amount), WINDOWS_S[unit]


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
