"""What is known of a request when it is routed, and what a route may ask of it.

The facts are a closed set, and there is no expression language: all that a route asks must hold, a
list is any of it, and two routes are an "or". Pure. Knows no YAML, no backend and no clock: the
time is one of the facts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ENDPOINTS = ("chat", "completions", "generate")
MINUTES_A_DAY = 24 * 60

SESSION_HEADERS = ("x-turnout-session-id", "x-session-id")
"""What clients may name a session by, the first before the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a request when it is routed."""

    tenant: str
    plan: str
    model: str  # as the client wrote it; "" when the dialect has none
    endpoint: str  # one of ENDPOINTS
    stream: bool
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # by name, in lower case
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # what clients call metadata
    prompt_tokens: int | None = None  # None: nobody could count them exactly
    max_tokens: int | None = None  # of one choice; None: the client set no bound
    num_choices: int = 1
    time_s: float = 0.0  # since the epoch
    session: str = ""  # what ties requests together that want the same backend; "" for none
    key_models: tuple[str, ...] = ("*",)  # globs: the key's own list, which narrows the plan's


class Names(NamedTuple):
    """Any of these globs; `negated`, none of them."""

    globs: tuple[str, ...]
    negated: bool = False

    def hold(self, text: str) -> bool:
        """Whether `text` is one that is meant."""
        for glob in self.globs:
            if glob == text or ("*" in glob and glob_matches(glob, text)):
                return not self.negated
        return self.negated


class Range(NamedTuple):
    """Both ends are inclusive, and None is no end."""

    low: int | None = None
    high: int | None = None

    def holds(self, value: int | None) -> bool:
        """Whether `value` is known to lie in it."""
        if value is None:
            return False
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


class TimeOfDay(NamedTuple):
    """A stretch of the day, on some days of the week, by the clocks of a time zone.

    One that ends before it starts goes on past midnight, and belongs to the day it began on.
    """

    start_minute: int = 0
    stop_minute: int = MINUTES_A_DAY  # exclusive
    days: frozenset[int] = frozenset(range(7))  # Monday is 0
    zone: str = "UTC"  # a name of the IANA time zone database

    def holds(self, time_s: float) -> bool:
        """Whether it is that time of day."""
        local = datetime.fromtimestamp(time_s, UTC).astimezone(ZoneInfo(self.zone))
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.start_minute < self.stop_minute:
            return self.start_minute <= minute < self.stop_minute and day in self.days
        if minute >= self.start_minute:
            return day in self.days
        return minute < self.stop_minute and (day - 1) % 7 in self.days


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The facts a route asks for: all must hold, and None asks nothing."""

    models: Names | None = None
    tenants: Names | None = None
    plans: Names | None = None
    endpoints: Names | None = None
    stream: bool | None = None
    headers: tuple[tuple[str, Names], ...] = ()  # each has to be there, whatever is asked of it
    tags: tuple[tuple[str, Names], ...] = ()  # likewise
    prompt_tokens: Range | None = None
    max_tokens: Range | None = None
    time: TimeOfDay | None = None

    def first_failing(self, facts: Facts, model: str) -> str:
        """The first key, in the order of the file format, that does not hold; "" if all hold.

        `model` is the public name behind what the client wrote.
        """
        # Most routes are about other models: they are done with before a generator is made.
        if self.models is not None and not self.models.hold(model):
            return "model"
        return next(self.failing_keys(facts, model), "")

    def failing_keys(self, facts: Facts, model: str) -> Iterator[str]:
        """All keys that do not hold, in the order of the file format."""
        for key, names, text in (
            ("model", self.models, model),
            ("tenant", self.tenants, facts.tenant),
            ("plan", self.plans, facts.plan),
            ("endpoint", self.endpoints, facts.endpoint),
        ):
            if names is not None and not names.hold(text):
                yield key
        if self.stream is not None and self.stream is not facts.stream:
            yield "stream"
        if not _all_hold(self.headers, facts.headers):
            yield "header"
        if not _all_hold(self.tags, facts.tags):
            yield "tags"
        if self.prompt_tokens is not None and not self.prompt_tokens.holds(facts.prompt_tokens):
            yield "prompt_tokens"
        if self.max_tokens is not None and not self.max_tokens.holds(facts.max_tokens):
            yield "max_tokens"
        if self.time is not None and not self.time.holds(facts.time_s):
            yield "time"


EVERYTHING = Match()


def glob_matches(pattern: str, text: str) -> bool:
    """Whether all of `text` fits `pattern`, in which `*` stands for any run of characters."""
    if "*" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


def _all_hold(asked: tuple[tuple[str, Names], ...], given: Mapping[str, str]) -> bool:
    return all(name in given and names.hold(given[name]) for name, names in asked)


@functools.lru_cache(maxsize=4096)  # patterns come from policies and keys, not from requests
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
