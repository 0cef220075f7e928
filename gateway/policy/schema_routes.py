"""The shape of a route in a policy file: what it matches, where it leads, and what then holds.

As `schema`, of which it is a part.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.policy.problems import Refusal
from gateway.policy.schema_values import (
    Between,
    Clock,
    Count,
    Day,
    DurationS,
    Endpoint,
    Entry,
    Globs,
    HeaderName,
    Name,
    NotYet,
    Percent,
    Priority,
    Share,
    Zone,
    one_or_many,
)

SHARE_SUM = 100.0
_ROUNDING = 1e-6


def _names(value: object) -> object:
    """`x`, `[x, y]` and `{not: x}` are all of one shape."""
    return cast(object, value) if isinstance(value, dict) else {"any": value}


def _fallback(value: object) -> object:
    return {"use": value} if isinstance(value, str) else value


def _as_text(value: object) -> object:
    """`429` is a number to YAML."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _kinds(value: object) -> object:
    values = cast(list[object], value) if isinstance(value, list) else [value]
    return [_as_text(one) for one in values]


def _sums_up(split: dict[str, float]) -> dict[str, float]:
    total = sum(split.values())
    if not split or abs(total - SHARE_SUM) > _ROUNDING:
        names = [*split]
        left = SHARE_SUM - sum(split[name] for name in names[:-1])
        parts = [f"{name}: {split[name]:g}" for name in names[:-1]]
        write = (
            ", ".join([*parts, f"{names[-1]}: {left:g}"]) if left > 0 and names else "a: 90, b: 10"
        )
        raise Refusal(
            "split-sum", f"the shares add up to {total:g}, not to 100", write=f"{{{write}}}"
        )
    return split


class NamesEntry(Entry):
    """Some names or globs, or all but some."""

    any: Globs | None = None
    none: Globs | None = Field(default=None, alias="not", examples=["[x, y]"])

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.any is None) is (self.none is None):
            raise Refusal("bad-value", "takes a name, a list of names, or {not: NAME}")
        return self


class RangeEntry(Entry):
    """A range of counts: exactly one of the three."""

    over: Count | None = Field(default=None, examples=["8k"])  # exclusive
    under: Count | None = Field(default=None, examples=["1k"])  # exclusive
    between: Between | None = Field(default=None, examples=["[1k, 8k]"])  # inclusive

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            message = "takes exactly one of over, under and between"
            raise Refusal("bad-value", message, write="{between: [1k, 8k]}")
        return self


class TimeEntry(Entry):
    """A stretch of the day, past midnight if `to` is before `from`; on some days, if they are
    listed.
    """

    start: Clock | None = Field(default=None, alias="from", examples=['"22:00"'])
    stop: Clock | None = Field(default=None, alias="to", examples=['"06:00"'])
    days: Annotated[list[Day], Field(min_length=1), BeforeValidator(one_or_many)] | None = Field(
        default=None, examples=["[sat, sun]"]
    )
    zone: Zone = Field(default="UTC", examples=["Europe/Berlin"])

    @model_validator(mode="after")
    def _says_when(self) -> Self:
        if (self.start is None) is not (self.stop is None):
            key = "from" if self.start is None else "to"
            example = '"22:00"' if self.start is None else '"06:00"'
            raise Refusal("missing-key", f"has no '{key}'", write=f"{key}: {example}")
        if self.start is None and self.days is None:
            message = "asks nothing: it takes from and to, or days"
            raise Refusal("missing-key", message, write='from: "22:00", to: "06:00"')
        if self.start is not None and self.start == self.stop:
            message = "begins and ends at the same time, so it holds always or never"
            raise Refusal("no-effect", message, write='{from: "22:00", to: "06:00"}')
        return self


NamesAsked = Annotated[
    NamesEntry, BeforeValidator(_names, json_schema_input_type=str | list[str] | NamesEntry)
]


class MatchEntry(Entry):
    """The facts a route asks for. All must hold; a list means any of it."""

    model: NamesAsked | None = Field(default=None, examples=["chat"])
    tenant: NamesAsked | None = Field(default=None, examples=["acme"])
    plan: NamesAsked | None = Field(default=None, examples=["pro"])
    endpoint: (
        Annotated[
            list[Endpoint],
            Field(min_length=1),
            BeforeValidator(one_or_many, json_schema_input_type=Endpoint | list[Endpoint]),
        ]
        | None
    ) = Field(default=None, examples=["chat"])
    stream: bool | None = Field(default=None, examples=["true"])
    prompt_tokens: RangeEntry | None = Field(default=None, examples=["{over: 8k}"])
    max_tokens: RangeEntry | None = Field(default=None, examples=["{under: 1k}"])
    header: dict[HeaderName, NamesAsked] | None = Field(default=None, examples=["{x-job: batch}"])
    tags: dict[str, NamesAsked] | None = Field(default=None, examples=["{team: research}"])
    time: TimeEntry | None = Field(default=None, examples=['{from: "22:00", to: "06:00"}'])
    tools: NotYet = None
    structured_output: NotYet = None
    images: NotYet = None
    cel: NotYet = None


class TimeoutEntry(Entry):
    """How long each phase may take. What is left out comes from `defaults`."""

    first_token: DurationS | None = Field(default=None, examples=["15s"])
    between_tokens: DurationS | None = Field(default=None, examples=["20s"])
    total: DurationS | None = Field(default=None, examples=["2m"])
    connect: NotYet = None


class RetryEntry(Entry):
    """How often one backend is asked before the next is. What is left out comes from `defaults`."""

    attempts: Count | None = Field(default=None, examples=["2"])
    budget: Percent | None = Field(default=None, examples=["10%"])

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if self.attempts is not None and self.attempts > MAX_ATTEMPTS:
            message = f"attempts is {self.attempts}, and at most {MAX_ATTEMPTS}"
            raise Refusal("bad-value", message, write="{attempts: 2}")
        return self


MAX_ATTEMPTS = 10  # with waits that double from a quarter of a second, more take over a minute


class FallbackEntry(Entry):
    """A backend that is tried after others, if the request is one of those meant."""

    use: str = Field(examples=["<a backend's name>"])
    when: MatchEntry = Field(default=MatchEntry(), examples=["{plan: pro}"])


FailOverOn = Annotated[
    list[Literal["connect", "timeout", "429", "5xx", "cut"]], BeforeValidator(_kinds)
]


class RouteEntry(Entry):
    """A rule: what it matches, and where that goes: exactly one of `use`, `split` and `pool`."""

    name: Name = Field(examples=["chat-default"])
    match: MatchEntry = Field(default=MatchEntry(), examples=["{model: chat}"])
    use: str | None = Field(default=None, examples=["<a backend's name>"])
    split: Annotated[dict[str, Share], AfterValidator(_sums_up)] | None = Field(
        default=None, examples=["{a: 90, b: 10}"]
    )
    pool: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None, examples=["[a, b]"]
    )
    balance: Literal["least_busy", "p2c", "latency", "cost", "hash"] | None = Field(
        default=None, examples=["least_busy"]
    )
    affinity: Literal["session"] | None = Field(default=None, examples=["session"])
    fallback: list[
        Annotated[
            FallbackEntry, BeforeValidator(_fallback, json_schema_input_type=str | FallbackEntry)
        ]
    ] = Field(default=[], examples=["[<a backend's name>]"])
    fail_over_on: FailOverOn | None = Field(
        default=None, examples=["[connect, timeout, 429, 5xx, cut]"]
    )
    retry: RetryEntry = Field(default=RetryEntry(), examples=["{attempts: 2, budget: 10%}"])
    timeout: TimeoutEntry = Field(default=TimeoutEntry(), examples=["{total: 2m}"])
    limits: list[str] = Field(default=[], examples=["[<a limit's name>]"])
    priority: Priority | None = Field(default=None, examples=["low"])
    queue: NotYet = None
    shadow: NotYet = None

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        given = [key for key in ("use", "split", "pool") if getattr(self, key) is not None]
        if not given:
            message = "leads nowhere: it takes one of use, split and pool"
            raise Refusal("missing-key", message, write="use: <a backend's name>")
        if len(given) > 1:
            message = f"a route takes one of use, split and pool, and this has {given[0]} already"
            hint = f"leave out one of {' and '.join(given)}"
            raise Refusal("bad-value", message, hint=hint, key=given[-1])
        self._check_effects(is_pool=self.pool is not None)
        return self

    def _check_effects(self, *, is_pool: bool) -> None:
        if self.balance is not None and not is_pool:
            raise _without_effect("balance", "only a pool is balanced")
        if self.affinity is not None and self.use is not None:
            raise _without_effect("affinity", "there is one backend to go to")
        if self.fallback and self.fail_over_on == []:
            raise _without_effect("fallback", "fail_over_on is empty")


def _without_effect(key: str, why: str) -> Refusal:
    return Refusal("no-effect", f"has no effect: {why}", hint=f"leave out '{key}'", key=key)
