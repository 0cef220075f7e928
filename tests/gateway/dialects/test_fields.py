from __future__ import annotations

import json
from typing import Annotated

import pytest
from pydantic import Field

from gateway.dialects.fields import (
    MAX_DEPTH,
    Body,
    nested_object,
    read_object,
    refuse_unbuilt,
    unknown_fields,
    validate,
)
from gateway.errors import InvalidRequest, MalformedBody, UnsupportedValue


class Part(Body):
    text: str


class Example(Body):
    parts: Annotated[list[Part], Field(max_length=2)]
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    n: Annotated[int, Field(ge=1, le=128)] = 1


def complaint(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        validate(Example, {"parts": []} | fields)
    return caught.value


def test_says_where_the_parser_gave_up() -> None:
    with pytest.raises(MalformedBody, match="could not parse the JSON body") as caught:
        read_object(b'{"model": ')
    assert "line 1" in caught.value.message


@pytest.mark.parametrize(("body", "kind"), [(b"[]", "an array"), (b"5", "5"), (b"null", "null")])
def test_says_what_it_got_in_place_of_an_object(body: bytes, kind: str) -> None:
    with pytest.raises(MalformedBody, match=f"must be a JSON object, got {kind}"):
        read_object(body)


def test_accepts_nesting_up_to_the_limit_and_not_beyond() -> None:
    """I-DEEP-JSON: the object itself is the first level."""
    within = MAX_DEPTH - 1
    assert read_object(b'{"a":' + b"[" * within + b"]" * within + b"}")
    with pytest.raises(MalformedBody, match="nested deeper than 64 levels"):
        read_object(b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "a", "model": "b"}',
        b'{"model": "a", "\\u006dodel": "b"}',
        b'{"messages": [{"role": "user", "content": "a", "role": "system"}]}',
    ],
)
def test_refuses_a_key_that_is_there_twice(body: bytes) -> None:
    """I-DUP-KEYS: two readers must not be able to pick different values."""
    with pytest.raises(MalformedBody, match="twice in one object"):
        read_object(body)


def test_the_same_key_in_two_objects_is_no_repetition() -> None:
    assert read_object(b'{"a": {"b": 1}, "c": {"b": 2}}') == {"a": {"b": 1}, "c": {"b": 2}}


def test_an_explicit_null_is_an_omitted_field() -> None:
    example = validate(Example, {"parts": [], "temperature": None, "n": None})
    assert (example.temperature, example.n) == (1.0, 1)


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        ({"parts": None}, "parts", "missing_required_parameter", "parts is required."),
        ({"parts": [{}]}, "parts[0].text", "missing_required_parameter", "is required."),
        ({"parts": [{"text": 3}]}, "parts[0].text", "invalid_type", "must be a string, got 3."),
        ({"parts": ["a"]}, "parts[0]", "invalid_type", 'must be an object, got "a".'),
        ({"parts": {}}, "parts", "invalid_type", "must be an array, got an object."),
        ({"parts": [{"text": ""}] * 3}, "parts", "array_above_max_length", "at most 2 items."),
        ({"temperature": -1}, "temperature", "decimal_below_min_value", "at least 0, got -1."),
        ({"temperature": 2.5}, "temperature", "decimal_above_max_value", "at most 2, got 2.5."),
        ({"temperature": True}, "temperature", "invalid_type", "must be a number, got true."),
        ({"temperature": "0.5"}, "temperature", "invalid_type", 'must be a number, got "0.5".'),
        ({"n": 0}, "n", "integer_below_min_value", "n must be at least 1, got 0."),
        ({"n": 1.0}, "n", "invalid_type", "n must be an integer, got 1.0."),
        ({"n": False}, "n", "invalid_type", "n must be an integer, got false."),
    ],
)
def test_names_the_field_the_rule_and_the_value(
    fields: dict[str, object], param: str, code: str, message: str
) -> None:
    """I-SAMPLING-RANGE: booleans are no numbers, and neither are numbers in quotes."""
    error = complaint(**fields)
    assert error.param == param
    assert error.detail_code == code
    assert message in error.message


def test_minus_zero_is_zero() -> None:
    assert validate(Example, {"parts": [], "temperature": -0.0}).temperature == 0.0


def test_a_long_value_is_not_echoed_whole() -> None:
    assert len(complaint(n="x" * 10_000).message) < 120


def test_unknown_fields_are_those_nobody_knows() -> None:
    document: dict[str, object] = {"parts": [], "n": None, "user": "u", "foo": 1, "bar": None}
    assert unknown_fields(document, Example, {"user"}) == {"foo": 1}


def test_nested_object_is_empty_for_anything_else() -> None:
    assert nested_object({"a": {"b": 1}}, "a") == {"b": 1}
    assert nested_object({"a": [1]}, "a") == {}


@pytest.mark.parametrize("value", [None, 0, 0.0, -0.0])
def test_lets_a_value_through_that_asks_for_nothing(value: object) -> None:
    refuse_unbuilt({"penalty": value}, {"penalty": (0,)})


@pytest.mark.parametrize("value", [0.5, False, "0", [], {"a": 1}])
def test_refuses_any_other_value_and_says_what_to_send(value: object) -> None:
    with pytest.raises(UnsupportedValue) as caught:
        refuse_unbuilt({"penalty": value}, {"penalty": (0,)}, where="parameters.")
    assert caught.value.param == "parameters.penalty"
    assert json.dumps(value, separators=(",", ":")) in caught.value.message
    assert "remove it or send 0." in caught.value.message
