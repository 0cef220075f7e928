"""Usage added up by tenant, model, day and so on. Pure: sums come in, lines go out.

The store gives sums over quarters of an hour, since every time zone in use begins its days at one;
here they are merged into what was asked for. Amounts in different currencies are never added:
each has lines and totals of its own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

QUARTER_S = 900


class Dimension(enum.Enum):
    """What usage can be grouped by."""

    TENANT = "tenant"
    MODEL = "model"
    BACKEND = "backend"
    KEY = "key"
    PLAN = "plan"
    DAY = "day"
    HOUR = "hour"


TIMES = (Dimension.DAY, Dimension.HOUR)


def dimensions(text: str) -> tuple[Dimension, ...]:
    """Those of `tenant,model`, each once.

    Raises:
        ValueError: one is unknown, or named twice.
    """
    names = [name.strip() for name in text.split(",")]
    known = [one.value for one in Dimension]
    for name in names:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise ValueError("each may be named once")
    return tuple(Dimension(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What requests used together."""

    num_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt tokens
    completion_tokens: int = 0
    estimated_tokens: int = 0  # of all tokens
    cost_micros: int = 0
    num_unpriced: int = 0  # requests whose tokens have no price: they are not in the cost

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def estimated_share(self) -> float:
        """Of the tokens, 0 to 1."""
        return self.estimated_tokens / self.total_tokens if self.total_tokens else 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            num_requests=self.num_requests + other.num_requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            estimated_tokens=self.estimated_tokens + other.estimated_tokens,
            cost_micros=self.cost_micros + other.cost_micros,
            num_unpriced=self.num_unpriced + other.num_unpriced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """What the store adds up: all requests that agree in these."""

    names: tuple[str, ...]  # of the dimensions that are no times, in the order asked for
    quarter: int | None  # number of the quarter of an hour since 1970; None if nobody asks
    currency: str
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a report: a name for each dimension, and the amounts in one currency."""

    names: tuple[str, ...]
    currency: str
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All lines, sorted by their names, and a total in each currency."""

    by: tuple[Dimension, ...]
    lines: tuple[Line, ...]
    totals: tuple[Line, ...]  # without names


def report(by: Sequence[Dimension], sums: Iterable[Sum], zone: tzinfo) -> Report:
    """Merge what the store added up into one line for each combination of `by`."""
    lines: dict[tuple[tuple[str, ...], str], Amounts] = {}
    totals: dict[str, Amounts] = {}
    for each in sums:
        key = (_names(by, each, zone), each.currency)
        lines[key] = lines.get(key, Amounts()) + each.amounts
        totals[each.currency] = totals.get(each.currency, Amounts()) + each.amounts
    return Report(
        by=tuple(by),
        lines=tuple(
            Line(names=names, currency=currency, amounts=amounts)
            for (names, currency), amounts in sorted(lines.items(), key=lambda item: item[0])
        ),
        totals=tuple(
            Line(names=(), currency=currency, amounts=amounts)
            for currency, amounts in sorted(totals.items())
        ),
    )


def _names(by: Sequence[Dimension], each: Sum, zone: tzinfo) -> tuple[str, ...]:
    given = iter(each.names)
    return tuple(_time(one, each, zone) if one in TIMES else next(given) for one in by)


def _time(dimension: Dimension, each: Sum, zone: tzinfo) -> str:
    """A day, or an hour with its offset: when clocks go back, two hours have the same name."""
    assert each.quarter is not None  # the store was asked for it, since a time is in `by`
    begin = datetime.fromtimestamp(each.quarter * QUARTER_S, zone)
    if dimension is Dimension.DAY:
        return begin.date().isoformat()
    return begin.replace(minute=0).isoformat(timespec="minutes")
