"""The values of a policy file, each checked on its own: names, amounts, rates, durations, shares.

What a JSON Schema says of them, for editors, is the pattern they are written in; the parsers in
`units` have the last word. Knows no keys and no positions.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic.json_schema import WithJsonSchema

from gateway.policy import model
from gateway.policy.match import DAYS
from gateway.policy.problems import Refusal, did_you_mean, nearest
from gateway.policy.units import (
    parse_clock,
    parse_cost,
    parse_count,
    parse_duration,
    parse_percent,
    parse_percents,
    parse_price,
    parse_rate,
    parse_reset,
    parse_share,
    parse_weight,
    parse_zone,
)

OptionValue = str | int | float | bool

# Names of ours end up in headers, metric labels and counter names; model names come from outside.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key", "api-key")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_CURRENCY = re.compile(r"[A-Z]{3}")  # ISO 4217
_LATER_ENGINES = ("http", "ray")


class Entry(BaseModel):
    """Base of all maps: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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


def one_or_many(value: object) -> object:
    """A single value as a list of one."""
    return cast(object, value) if isinstance(value, list) else [value]


def _engine(value: object) -> object:
    if value in _LATER_ENGINES:
        raise Refusal("not-supported-yet", f"engine '{value}' is not supported yet")
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


def _day(value: object) -> int:
    if value not in DAYS:
        hint = did_you_mean(nearest(str(value), DAYS)) or f"the days are {', '.join(DAYS)}"
        raise Refusal("bad-value", f"{value} is not a day of the week", hint=hint)
    return DAYS.index(str(value))


def _written(pattern: str, *, numbers: bool = False) -> WithJsonSchema:
    """For editors: text of a pattern, or a bare number too."""
    text = {"type": "string", "pattern": f"^{pattern}$"}
    return WithJsonSchema({"anyOf": [{"type": "number"}, text]} if numbers else text)


_COUNT = r"\d+(\.\d+)?[kM]?"
_WINDOW = "(s|min|h|day|month)"
_PERCENT = r"\d+(\.\d+)?%"

NotYet = Annotated[None, BeforeValidator(_not_yet), WithJsonSchema({"not": {}})]
Name = Annotated[str, AfterValidator(_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
Globs = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(one_or_many, json_schema_input_type=str | list[str]),
]
Count = Annotated[int, PlainValidator(parse_count), _written(_COUNT, numbers=True)]
Rate = Annotated[model.Rate, PlainValidator(parse_rate), _written(f"{_COUNT}/{_WINDOW}")]
Cost = Annotated[model.Rate, PlainValidator(parse_cost), _written(rf"\d+(\.\d+)?/{_WINDOW}")]
Reset = Annotated[
    model.Reset, PlainValidator(parse_reset), _written(r"\d\d:\d\d( [A-Za-z0-9_+/-]+)?")
]
Percents = Annotated[
    tuple[int, ...],
    PlainValidator(parse_percents),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]
Percent = Annotated[float, PlainValidator(parse_percent), _written(_PERCENT)]
Share = Annotated[float, PlainValidator(parse_share), _written(f"{_PERCENT}?", numbers=True)]
OnStoreError = Literal["deny", "local_share", "allow"]
Priority = Literal["low", "normal", "high"]
Weight = Annotated[float, PlainValidator(parse_weight), WithJsonSchema({"type": "number"})]
PricePerMillion = Annotated[int, PlainValidator(parse_price), WithJsonSchema({"type": "number"})]
Currency = Annotated[str, AfterValidator(_currency)]
DurationS = Annotated[float, PlainValidator(parse_duration), _written(r"\d+(\.\d+)? ?(ms|s|m|h)")]
Clock = Annotated[int, PlainValidator(parse_clock), _written(r"\d\d:\d\d")]
Zone = Annotated[str, PlainValidator(parse_zone), WithJsonSchema({"type": "string"})]
Day = Annotated[int, PlainValidator(_day), WithJsonSchema({"enum": list(DAYS)})]
Between = Annotated[
    tuple[int, int], PlainValidator(_between), WithJsonSchema({"type": "array", "maxItems": 2})
]
Option = Annotated[
    OptionValue,
    PlainValidator(_option),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
Endpoint = Literal["chat", "completions", "generate"]
Engine = Annotated[
    Literal["native", "priority_batcher", "static_batch", "fastchat", "echo"],
    BeforeValidator(_engine),
]
