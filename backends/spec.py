"""What is configured of a backend, and an engine's own options as a frozen dataclass.

Knows no engine and no file format.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)
else:
    Options = TypeVar("Options")

OptionValue = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """One backend, ready to be opened: names resolved to paths."""

    name: str
    engine: str
    model: str  # as it was configured
    options: Mapping[str, OptionValue]
    model_path: Path | None = None  # None: the engine needs no model
    socket_path: Path | None = None  # None: the engine needs no process of its own


class BackendConfigError(ValueError):
    """A backend's configuration cannot work. The message names backend, key and remedy."""


def read_options(
    kind: type[Options],
    values: Mapping[str, OptionValue],
    *,
    where: str,
    given: Mapping[str, object] | None = None,
) -> Options:
    """Make a `kind` of `values`; `where` is the backend's name for messages.

    Every field of `kind` is one scalar with a default, but for those `given` from elsewhere, which
    are no options.

    Raises:
        BackendConfigError: an unknown key, a value of another type, or one out of range.
    """
    given = given or {}
    known = {name: hint for name, hint in get_type_hints(kind).items() if name not in given}
    for name, value in values.items():
        if name not in known:
            raise BackendConfigError(f"{where}: no option is named {name!r}; {_hint(name, known)}")
        if not _fits(value, known[name]):
            raise BackendConfigError(
                f"{where}: option {name!r} must be {_words(known[name])}, not {value!r}"
            )
    try:
        return kind(**values, **given)
    except ValueError as error:
        raise BackendConfigError(f"{where}: {error}") from error


def _fits(value: OptionValue, expected: object) -> bool:
    if get_origin(expected) is Literal:
        return value in get_args(expected)
    if isinstance(value, bool):  # which Python counts as int
        return expected is bool
    return type(value) is expected or (expected is float and isinstance(value, int))


def _words(expected: object) -> str:
    choices = [repr(choice) for choice in get_args(expected)]
    return f"one of {', '.join(choices)}" if choices else getattr(expected, "__name__", "a value")


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
