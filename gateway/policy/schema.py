"""The shape of a policy file, as pydantic models: which keys there are and what they may hold.

Each value is checked on its own; references between entries are the business of `references`. A
key of the language that this version does not act on yet is declared `NotYet`, so that it is
refused by name and never ignored. The `examples` are what an error tells people to write. Knows
no YAML and no positions.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from gateway.policy import model
from gateway.policy.problems import Refusal
from gateway.policy.schema_routes import FailOverOn, RetryEntry, RouteEntry, TimeoutEntry
from gateway.policy.schema_values import (
    Cost,
    Count,
    Currency,
    DurationS,
    Engine,
    Entry,
    Globs,
    ModelName,
    Name,
    NotYet,
    OnStoreError,
    Option,
    Percents,
    PricePerMillion,
    Priority,
    Rate,
    Reset,
    Weight,
)

DEFAULT_BREAKER = model.BreakerRule(failures=5, cooldown_s=10.0)

_MODEL_EXAMPLES = {"echo": "", "fastchat": "vicuna-7b-v1.5"}


def _content(value: object) -> object:
    if value is True or value == "on":
        raise Refusal("not-supported-yet", "capturing content is not supported yet", write="off")
    return value


class PriceEntry(Entry):
    """What a million tokens cost, in the policy's `currency`. Cached ones cost as others, if not
    said.
    """

    input: PricePerMillion = Field(examples=["0.15"])
    cached: PricePerMillion | None = Field(default=None, examples=["0.075"])
    output: PricePerMillion = Field(examples=["0.60"])


class BreakerEntry(Entry):
    """When a backend that fails is left alone, and for how long at first."""

    failures: Count = Field(default=DEFAULT_BREAKER.failures, examples=["5"])
    cooldown: DurationS = Field(default=DEFAULT_BREAKER.cooldown_s, examples=["10s"])


class BackendEntry(Entry):
    """What can answer. Keys that are not named here are the engine's own options."""

    model_config = ConfigDict(extra="allow")
    # the annotation is how pydantic is told the type of the extra keys
    __pydantic_extra__: dict[str, Option]  # pyright: ignore[reportIncompatibleVariableOverride]

    engine: Engine = Field(examples=["native"])
    model: str = Field(default="", examples=["smollm2-135m-instruct"])
    price: PriceEntry | None = Field(default=None, examples=["{input: 0.15, output: 0.60}"])
    limits: list[str] = Field(default=[], examples=["[<a limit's name>]"])
    breaker: BreakerEntry | None = Field(default=None, examples=["{failures: 5, cooldown: 10s}"])

    @model_validator(mode="after")
    def _has_a_model(self) -> Self:
        example = _MODEL_EXAMPLES.get(self.engine, "smollm2-135m-instruct")
        if example and not self.model:
            message = f"engine '{self.engine}' needs a model"
            raise Refusal("missing-key", message, write=f"model: {example}")
        return self


class ModelEntry(Entry):
    """A name that clients may ask for, and its other names."""

    aliases: list[ModelName] = Field(default=[], examples=["[gpt-4o-mini]"])


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
                    message = "has no effect: nothing in this limit is per day or month"
                    raise Refusal("no-effect", message, hint=f"leave out '{key}'", key=key)
        return self


class PlanEntry(Entry):
    """What the tenants on it may do."""

    limits: list[str] = Field(default=[], examples=["[<a limit's name>]"])
    models: Globs = Field(examples=['"*"'])
    priority: Priority = "normal"
    weight: Weight = 1.0


class DefaultsEntry(Entry):
    """What holds where nothing else is said."""

    model: str | None = Field(default=None, examples=["<a model's name>"])
    estimate_output: Count = Field(default=512, examples=["512"])
    timeout: TimeoutEntry = Field(default=TimeoutEntry(), examples=["{total: 2m}"])
    on_store_error: OnStoreError = "deny"
    retry: RetryEntry = Field(default=RetryEntry(), examples=["{attempts: 2, budget: 10%}"])
    fail_over_on: FailOverOn | None = Field(
        default=None, examples=["[connect, timeout, 429, 5xx, cut]"]
    )


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
    limits: dict[Name, LimitEntry] = Field(default={}, examples=["{demo: {requests: 60/min}}"])
    plans: dict[Name, PlanEntry] = Field(min_length=1, examples=['{demo: {models: "*"}}'])
    routes: list[RouteEntry] = Field(min_length=1, examples=["[{name: default, use: smollm2}]"])
    currency: Currency | None = Field(default=None, examples=["USD"])
    defaults: DefaultsEntry = DefaultsEntry()
    telemetry: TelemetryEntry = TelemetryEntry()
    include: Globs = Field(default=[], examples=["tenants/*.yaml"])
