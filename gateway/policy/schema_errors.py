"""pydantic's complaints about a policy, retold with places, near names and what to write.

The one module that knows both the schema and the tree of positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.policy.problems import Problem, Refusal, Span, did_you_mean, nearest
from gateway.policy.schema import PolicyFile
from gateway.policy.yaml_nodes import Node, Path

_WANTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
}
_NEAR_BOOLS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def problems_of(error: ValidationError, root: Node) -> list[Problem]:
    """Every complaint, at its place in the file."""
    return [_problem(root, each) for each in error.errors(include_url=False)]


def place(root: Node, path: Path) -> str:
    """A path in words: `routes[2] (chat-default).match.model`."""
    words = ""
    node: Node | None = root
    for step in path:
        node = node.get(step) if node else None
        words += f"[{step}]" if isinstance(step, int) else f"{'.' if words else ''}{step}"
        name = node.get("name") if node else None
        if isinstance(step, int) and name and name.text:
            words += f" ({name.text})"
    return words or "the policy"


def written_as(path: Path, value: str) -> str:
    """`key: value`, as it would stand in the file."""
    key = path[-1] if path else 0
    return f"{key}: {value}" if isinstance(key, str) else value


def _problem(root: Node, error: ErrorDetails) -> Problem:
    path, kind = _as_written(root, error["loc"]), error["type"]
    refusal = error.get("ctx", {}).get("error")
    if path[-1:] == ("[key]",):
        return _bad_key(root, path[:-1], refusal)
    if kind == "extra_forbidden":
        return _unknown_key(root, path)
    if kind == "missing":
        return _missing_key(root, path)
    if isinstance(refusal, Refusal):
        return _refused(root, path, refusal)
    return _bad_value(root, path, error)


def _as_written(root: Node, path: Path) -> Path:
    """Without the steps into a list or a map that a single value stands for."""
    written: list[str | int] = []
    node: Node | None = root
    for step in path:
        kind = tuple if isinstance(step, int) else Mapping
        if node and step != "[key]" and not isinstance(node.value, kind):
            continue
        written.append(step)
        node = node.get(step) if node else None
    return tuple(written)


def _bad_key(root: Node, path: Path, refusal: object) -> Problem:
    message = refusal.message if isinstance(refusal, Refusal) else "not a name"
    return Problem(
        code="bad-value", message=f"{place(root, path[:-1])}: {message}", span=_key_span(root, path)
    )


def _unknown_key(root: Node, path: Path) -> Problem:
    key = str(path[-1])
    suggestion = nearest(key, _keys_at(path[:-1]))
    source = root.at(path).source
    return Problem(
        code="unknown-key",
        message=f"'{key}' is not a key of {place(root, path[:-1])}",
        span=_key_span(root, path),
        hint=did_you_mean(suggestion) or f"the keys are {', '.join(_keys_at(path[:-1]))}",
        write=f"{suggestion}: {source}".rstrip() if suggestion else "",
    )


def _missing_key(root: Node, path: Path) -> Problem:
    return Problem(
        code="missing-key",
        message=f"{place(root, path[:-1])} has no '{path[-1]}'",
        span=_key_span(root, path[:-1]),
        write=written_as(path, _example(path)),
    )


def _refused(root: Node, path: Path, refusal: Refusal) -> Problem:
    whole_entry = refusal.code == "missing-key"
    names_the_key = refusal.code == "not-supported-yet" or refusal.key
    if refusal.key:
        path = (*path, refusal.key)
    node = root.at(path)
    write = refusal.write
    if write and not whole_entry:
        write = written_as(path, write)
    return Problem(
        code=refusal.code,
        message=f"{place(root, path)}: {refusal.message}",
        span=_key_span(root, path) if whole_entry or names_the_key else node.span,
        hint=refusal.hint,
        write=write,
    )


def _bad_value(root: Node, path: Path, error: ErrorDetails) -> Problem:
    kind, value = error["type"], error["input"]
    node = root.at(path)
    shown = node.source or "this"
    hint = write = ""
    if kind == "literal_error":
        expected: str = error.get("ctx", {}).get("expected", "")
        message = f"{shown} is not {expected}"
        suggestion = nearest(str(value), re.findall(r"'([^']*)'", expected))
        hint = did_you_mean(suggestion)
    elif kind == "too_short":
        message, write = "must not be empty", _example(path)
    else:
        message = f"{shown} is not {_WANTED[kind]}" if kind in _WANTED else error["msg"]
        write = _converted(kind, value, node.source) or _example(path)
    return Problem(
        code="bad-value",
        message=f"{place(root, path)}: {message}",
        span=node.span,
        hint=hint,
        write=written_as(path, write) if write else "",
    )


def _converted(kind: str, value: object, source: str) -> str:
    """The value as it should have been written, where that can be told."""
    if kind == "string_type" and isinstance(value, int | float):
        return f'"{source}"'
    if kind == "bool_type":
        return _NEAR_BOOLS.get(str(value).lower(), "")
    if kind == "list_type" and isinstance(value, str):
        return f"[{source}]"
    if kind in ("dict_type", "model_type") and value is None:
        return "{}"
    return ""


def _key_span(root: Node, path: Path) -> Span:
    """Where the key at the end of `path` stands; for a list's item and the file, where it starts.

    A map is underlined by its first character: all of it would be no help.
    """
    node = root.at(path)
    if node.key_span is not None:
        return node.key_span
    return Span(line=node.span.line, column=node.span.column)


def _keys_at(path: Path) -> tuple[str, ...]:
    """The keys that the schema knows for the map at `path`."""
    return tuple(_fields_at(path))


def _example(path: Path) -> str:
    """What the schema suggests to write for the key at `path`."""
    field = _fields_at(path[:-1]).get(str(path[-1])) if path else None
    return str(field.examples[0]) if field and field.examples else ""


def _fields_at(path: Path) -> dict[str, FieldInfo]:
    """What the schema knows of the map at `path`, by the keys as they are written."""
    fields = _fields_of(PolicyFile)
    steps = iter(path)
    for step in steps:
        field = fields.get(str(step))
        annotation = field.annotation if field else None
        fields = _fields_of(_model_in(annotation))
        if _is_collection(annotation):
            next(steps, None)  # an index under `routes:`, a name under `backends:`
    return fields


def _fields_of(model: type[BaseModel] | None) -> dict[str, FieldInfo]:
    fields = model.model_fields if model else {}
    return {field.alias or name: field for name, field in fields.items()}


def _is_collection(annotation: object) -> bool:
    """Whether there is a list or a map of names outside of the first model in it."""
    if get_origin(annotation) in (list, dict):
        return True
    return not isinstance(annotation, type) and any(map(_is_collection, get_args(annotation)))


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
