"""Body bytes to checked values: the door every dialect's JSON comes through.

`read_object` accepts exactly one JSON object (RFC 8259, UTF-8) and refuses what two readers could
read differently: repeated keys, lone surrogates, numbers beyond a double, nesting without end.
`validate` holds it against a pydantic model and says in words of the wire what is wrong where.
Knows no dialect's fields.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from gateway.errors import InvalidRequest, MalformedBody, UnsupportedValue

Document = dict[str, object]
Unbuilt = dict[str, tuple[object, ...]]
"""Fields that nothing here implements, each with the values that ask for nothing."""

MAX_DEPTH = 64
_SHOWN_CHARS = 60  # of a client's value in an error message

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}
_CONSTRAINTS = {  # pydantic's error type -> (what must hold, OpenAI's code)
    "missing": ("is required", "missing_required_parameter"),
    "greater_than_equal": ("must be at least {ge}", "{number}_below_min_value"),
    "less_than_equal": ("must be at most {le}", "{number}_above_max_value"),
    "greater_than": ("must be greater than {gt}", "{number}_below_min_value"),
    "less_than": ("must be less than {lt}", "{number}_above_max_value"),
    "too_short": ("must have at least {min_length} item", "empty_array"),
    "too_long": ("must have at most {max_length} items", "array_above_max_length"),
    "string_too_short": ("must not be an empty string", "empty_string"),
    "string_too_long": ("must have at most {max_length} characters", "string_above_max_length"),
    "literal_error": ("must be {expected}", "invalid_value"),
}
_SPEAK_FOR_THEMSELVES = {"missing", "too_short", "too_long", "string_too_short", "string_too_long"}


class Body(BaseModel):
    """A JSON object as some wire format describes it.

    Strict: a number in quotes is no number and a boolean is no integer. An explicit null is an
    omitted field. Unknown keys are not this class's business: see `unknown_fields`.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_omitted(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        members = cast("Document", data)
        return {key: value for key, value in members.items() if value is not None}


_BodyT = TypeVar("_BodyT", bound=Body)


def read_object(body: bytes) -> Document:
    """Parse a request body.

    Raises:
        MalformedBody: it is not one JSON object, not UTF-8, repeats a key, or is nested deeper than
            `MAX_DEPTH`.
    """
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(
            "We could not parse the JSON body of your request. "
            f"(HINT: send one JSON object in UTF-8; the parser says: {error})"
        ) from None
    if not isinstance(document, dict):
        raise MalformedBody(f"The body must be a JSON object, got {_shown(document)}.")
    members = cast("Document", document)
    _check_depth(members)
    # orjson keeps the last of repeated keys without a word. A second pass costs 100 us on 14 kB.
    json.loads(body, object_pairs_hook=_refuse_repeated_keys)
    return members


def validate(model: type[_BodyT], document: Document) -> _BodyT:
    """Hold a document against a model.

    Raises:
        InvalidRequest: names the first field that does not fit.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    raise _invalid(first, _path(document, first))


def unknown_fields(document: Document, model: type[Body], *others: Collection[str]) -> Document:
    """Members that neither `model` nor `others` have heard of; nulls left out."""
    known = set(model.model_fields).union(*others)
    return {key: value for key, value in document.items() if key not in known and value is not None}


def nested_object(document: Document, key: str) -> Document:
    """The object at `key`; empty if there is none."""
    value = document.get(key)
    return cast("Document", value) if isinstance(value, dict) else {}


def refuse_unbuilt(document: Document, unbuilt: Unbuilt, *, where: str = "") -> None:
    """Let through only values that ask for nothing, of fields that nothing here implements.

    Null always asks for nothing; true and 1 are different values.

    Raises:
        UnsupportedValue: names the field and how to go on without it.
    """
    for name, neutral in unbuilt.items():
        value = document.get(name)
        if value is None or any(_same(value, accepted) for accepted in neutral):
            continue
        way_out = " or ".join(["remove it", *(f"send {_json(accepted)}" for accepted in neutral)])
        raise UnsupportedValue(
            f"`{where}{name}` = {_json(value)} is not supported by this server; {way_out}.",
            param=where + name,
        )


def _same(value: object, accepted: object) -> bool:
    """JSON equality: unlike Python's, it tells true from 1."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _check_depth(document: Document) -> None:
    level: list[object] = [document]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise MalformedBody(f"The body is nested deeper than {MAX_DEPTH} levels; flatten it.")


def _children(node: object) -> list[object]:
    members = (
        cast("Document", node).values() if isinstance(node, dict) else cast("list[object]", node)
    )
    return [child for child in members if isinstance(child, dict | list)]


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise MalformedBody(f"The body names {_shown(key)} twice in one object; send it once.")
        seen.add(key)


def _path(document: Document, error: ErrorDetails) -> str:
    """The error's place, followed through the client's own document.

    pydantic's location also names branches of unions, which are no part of the body; every union
    here is of texts and arrays, so the name of a branch leads nowhere in it.
    """
    node = cast("object", document)
    path = ""
    for step in error["loc"]:
        if isinstance(node, list) and isinstance(step, int):
            node = cast("list[object]", node)[step]
            path += f"[{step}]"
        elif isinstance(node, dict) and isinstance(step, str):
            node = cast("Document", node).get(step)
            path += f".{step}" if path else step
    return path


def _invalid(error: ErrorDetails, param: str) -> InvalidRequest:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _CONSTRAINTS:
        rule, code = _CONSTRAINTS[kind]
        is_decimal = any(isinstance(bound, float) for bound in context.values())
        code = code.format(number="decimal" if is_decimal else "integer")
        rule = rule.format(**{name: _bound(bound) for name, bound in context.items()})
    else:
        rule, code = f"must be {_EXPECTED.get(kind) or error['msg']}", "invalid_type"
    got = "" if kind in _SPEAK_FOR_THEMSELVES else f", got {_shown(value)}"
    return InvalidRequest(f"{param} {rule}{got}.", param=param, code=code)


def _bound(value: object) -> object:
    return f"{value:g}" if isinstance(value, float) else value


def _json(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return _json(value)
