"""The shape of a policy file, as pydantic models: which keys there are and what they may hold.

Each value is checked on its own; references between entries are the business of `references`. A
key of the language that this version does not act on yet is declared `NotYet`, so that it is
refused by name and never ignored. The `examples` are what an error tells people to write. Knows
no YAML and no positions.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)

from gateway.policy import model
from gateway.policy.problems import Refusal
from gateway.policy.units import (
    parse_cost,
    parse_count,
    parse_duration,
    parse_percents,
    parse_price,
    parse_rate,
    parse_reset,
    parse_weight,
)

OptionValue = str | int | float | bool

# Names of ours end up in headers, metric labels and counter names; model names come from outside.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_CURRENCY = re.compile(r"[A-Z]{3}")  # ISO 4217
_MODEL_EXAMPLES = {"echo": "", "fastchat": "vicuna-7b-v1.5"}
_LATER_ENGINES = ("http", "ray")


def _not_yet(_: object) -> None:
    raise Refusal("not-supported-yet", "not supported yet in this version")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise Refusal("bad-value", f"'{value}' is not a name; it may hold letters, digits, . _ -")
    return value


def _model_name(value: str) -> str:
    if not _MODEL_NAME.fullmatch(value):
        allowed = "letters, digits, . _ : / @ + -"
        raise Refusal("bad-value", f"'{value}' is not a model name; it may hold {allowed}")
    return value


def _currency(value: str) -> str:
    if not _CURRENCY.fullmatch(value):
        raise Refusal("bad-value", f"'{value}' is not a currency's code such as USD or EUR")
    return value


def _header_name(value: str) -> str:
    name = value.lower()
    if not _HEADER_NAME.fullmatch(name):
        raise Refusal("bad-value", f"'{value}' is not a header's name")
    if name in _SECRET_HEADERS:
        message = f"'{value}' holds a secret, which a policy must not repeat; match tenant or plan"
        raise Refusal("bad-value", message)
    return name


def _one_or_many(value: object) -> object:
    if isinstance(value, dict):
        raise Refusal("not-supported-yet", "conditions such as {not: …} are not supported yet")
    return cast(object, value) if isinstance(value, list) else [value]


def _fallback(value: object) -> object:
    if isinstance(value, dict):
        raise Refusal("not-supported-yet", "a fallback with conditions is not supported yet")
    return value


def _engine(value: object) -> object:
    if value in _LATER_ENGINES:
        raise Refusal("not-supported-yet", f"engine '{value}' is not supported yet")
    return value


def _content(value: object) -> object:
    if value is True or value == "on":
        raise Refusal("not-supported-yet", "capturing content is not supported yet", write="off")
    return value


def _option(value: object) -> OptionValue:
    if not isinstance(value, OptionValue) or (isinstance(value, float) and math.isinf(value)):
        raise Refusal("bad-value", "an engine's option is text, a number, or true or false")
    return value


def _between(value: object) -> tuple[int, int]:
    bounds = cast(list[object], value) if isinstance(value, list) else []
    if len(bounds) != 2:
        raise Refusal("bad-value", "between takes two counts", write="[1k, 8k]")
    low, high = map(parse_count, bounds)
    if low > high:
        raise Refusal("bad-value", f"{low} is more than {high}", write=f"[{high}, {low}]")
    return low, high


NotYet = Annotated[None, BeforeValidator(_not_yet)]
Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Names = Annotated[list[str], Field(min_length=1), BeforeValidator(_one_or_many)]
Count = Annotated[int, PlainValidator(parse_count)]
Rate = Annotated[model.Rate, PlainValidator(parse_rate)]
Cost = Annotated[model.Rate, PlainValidator(parse_cost)]
Reset = Annotated[model.Reset, PlainValidator(parse_reset)]
Percents = Annotated[tuple[int, ...], PlainValidator(parse_percents)]
OnStoreError = Literal["deny", "local_share", "allow"]
Weight = Annotated[float, PlainValidator(parse_weight)]
PricePerMillion = Annotated[int, PlainValidator(parse_price)]
Currency = Annotated[str, AfterValidator(_currency)]
DurationS = Annotated[float, PlainValidator(parse_duration)]
Endpoint = Literal["chat", "completions", "generate"]
Engine = Literal["native", "priority_batcher", "static_batch", "fastchat", "echo"]


class Entry(BaseModel):
    """Base of all: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PriceEntry(Entry):
    """What a million tokens cost, in the policy's `currency`. Cached ones cost as others, if not
    said.
    """

    input: PricePerMillion = Field(examples=["0.15"])
    cached: PricePerMillion | None = Field(default=None, examples=["0.075"])
    output: PricePerMillion = Field(examples=["0.60"])


class BackendEntry(Entry):
    """What can answer. Keys that are not named here are the engine's own options."""

    model_config = ConfigDict(extra="allow")
    # the annotation is how pydantic is told the type of the extra keys
    __pydantic_extra__: dict[str, Annotated[OptionValue, PlainValidator(_option)]]  # pyright: ignore[reportIncompatibleVariableOverride]

    engine: Annotated[Engine, BeforeValidator(_engine)] = Field(examples=["native"])
    model: str = Field(default="", examples=["smollm2-135m-instruct"])
    price: PriceEntry | None = Field(default=None, examples=["{input: 0.15, output: 0.60}"])
    limits: list[str] = []

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        example = _MODEL_EXAMPLES.get(self.engine, "smollm2-135m-instruct")
        if example and not self.model:
            message = f"engine '{self.engine}' needs a model"
            raise Refusal("missing-key", message, write=f"model: {example}")
        return self


class ModelEntry(Entry):
    """A name that clients may ask for, and its other names."""

    aliases: list[ModelName] = []


class LimitEntry(Entry):
    """What somebody may spend. At least one kind."""

    requests: Rate | None = Field(default=None, examples=["60/min"])
    input_tokens: Rate | None = Field(default=None, examples=["30k/min"])
    output_tokens: Rate | None = Field(default=None, examples=["10k/min"])
    tokens: Rate | None = Field(default=None, examples=["40k/min"])
    cost: Cost | None = Field(default=None, examples=["200/month"])
    concurrent: Count | None = Field(default=None, examples=["4"])
    reset: Reset | None = Field(default=None, examples=['"00:00 Europe/Berlin"'])
    warn_at: Percents = Field(default=(), examples=["80%"])
    per: Literal["tenant", "key", "plan", "route"] | None = None
    on_store_error: OnStoreError | None = None

    @property
    def rates(self) -> tuple[model.Rate, ...]:
        """All that are given."""
        kinds = (self.requests, self.input_tokens, self.output_tokens, self.tokens, self.cost)
        return tuple(rate for rate in kinds if rate is not None)

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.rates and self.concurrent is None:
            message = "a limit without requests, tokens, cost or concurrent limits nothing"
            raise Refusal("missing-key", message, write="requests: 60/min")
        if not any(rate.period for rate in self.rates):
            for key, value in (("reset", self.reset), ("warn_at", self.warn_at)):
                if value:
                    message = f"'{key}' has no effect: nothing in this limit is per day or month"
                    raise Refusal("no-effect", message)
        return self


class PlanEntry(Entry):
    """What the tenants on it may do."""

    limits: list[str] = []
    models: Names = Field(examples=['"*"'])
    priority: Literal["low", "normal", "high"] = "normal"
    weight: Weight = 1.0


class PromptTokens(Entry):
    """A range of prompt lengths: exactly one of the three."""

    over: Count | None = None  # exclusive
    under: Count | None = None  # exclusive
    between: Annotated[tuple[int, int], PlainValidator(_between)] | None = None  # inclusive

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            message = "takes exactly one of over, under and between"
            raise Refusal("bad-value", message, write="{between: [1k, 8k]}")
        return self


class MatchEntry(Entry):
    """The facts a route asks for. All must hold; a list means any of it."""

    model: Names | None = None
    tenant: Names | None = None
    plan: Names | None = None
    endpoint: Annotated[list[Endpoint], BeforeValidator(_one_or_many)] | None = None
    stream: bool | None = Field(default=None, examples=["true"])
    prompt_tokens: PromptTokens | None = Field(default=None, examples=["{over: 8k}"])
    header: dict[HeaderName, Names] | None = Field(default=None, examples=["{x-job: batch}"])
    max_tokens: NotYet = None
    tools: NotYet = None
    images: NotYet = None
    time: NotYet = None
    cel: NotYet = None


class TimeoutEntry(Entry):
    """How long each phase may take. What is left out comes from `defaults`."""

    first_token: DurationS | None = Field(default=None, examples=["15s"])
    between_tokens: DurationS | None = Field(default=None, examples=["20s"])
    total: DurationS | None = Field(default=None, examples=["2m"])
    connect: NotYet = None


class RouteEntry(Entry):
    """A rule: what it matches, and where that goes."""

    name: Name = Field(examples=["chat-default"])
    match: MatchEntry = Field(default=MatchEntry(), examples=["{model: chat}"])
    use: str = Field(examples=["<a backend's name>"])
    fallback: list[Annotated[str, BeforeValidator(_fallback)]] = []
    timeout: TimeoutEntry = Field(default=TimeoutEntry(), examples=["{total: 2m}"])
    split: NotYet = None
    pool: NotYet = None
    balance: NotYet = None
    affinity: NotYet = None
    fail_over_on: NotYet = None
    limits: list[str] = []
    queue: NotYet = None
    retry: NotYet = None
    shadow: NotYet = None


class DefaultsEntry(Entry):
    """What holds where nothing else is said."""

    model: str | None = Field(default=None, examples=["<a model's name>"])
    estimate_output: Count = Field(default=512, examples=["512"])
    timeout: TimeoutEntry = Field(default=TimeoutEntry(), examples=["{total: 2m}"])
    on_store_error: OnStoreError = "deny"
    retry: NotYet = None


class TelemetryEntry(Entry):
    """What is recorded of a request beside numbers."""

    content: Annotated[Literal["off"], BeforeValidator(_content)] = "off"
    semconv: NotYet = None


class PolicyFile(Entry):
    """A whole file."""

    version: Literal[1] = Field(examples=["1"])
    backends: dict[Name, BackendEntry] = Field(
        min_length=1, examples=["{smollm2: {engine: native, model: smollm2-135m-instruct}}"]
    )
    models: dict[ModelName, ModelEntry] = Field(min_length=1, examples=["{smollm2: {}}"])
    limits: dict[Name, LimitEntry] = {}
    plans: dict[Name, PlanEntry] = Field(min_length=1, examples=['{demo: {models: "*"}}'])
    routes: list[RouteEntry] = Field(min_length=1, examples=["[{name: default, use: smollm2}]"])
    currency: Currency | None = Field(default=None, examples=["USD"])
    defaults: DefaultsEntry = DefaultsEntry()
    telemetry: TelemetryEntry = TelemetryEntry()
    include: NotYet = None
