"""What is configured of a backend, and an engine's own options as a frozen dataclass.

Knows no engine and no file format.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_type_hints

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


def read_options(kind: type[Options], values: Mapping[str, OptionValue], *, where: str) -> Options:
    """Make a `kind` of `values`; `where` is the backend's name for messages.

    Every field of `kind` is one scalar and has a default.

    Raises:
        BackendConfigError: an unknown key, a value of another type, or one out of range.
    """
    known = get_type_hints(kind)
    for name, value in values.items():
        if name not in known:
            raise BackendConfigError(f"{where}: no option is named {name!r}{_hint(name, kind)}")
        if not _fits(value, known[name]):
            expected = getattr(known[name], "__name__", known[name])
            raise BackendConfigError(
                f"{where}: option {name!r} must be {expected}, not {type(value).__name__} {value!r}"
            )
    try:
        return kind(**values)
    except ValueError as error:
        raise BackendConfigError(f"{where}: {error}") from error


def _fits(value: OptionValue, expected: object) -> bool:
    if isinstance(value, bool):  # which Python counts as int
        return expected is bool
    return isinstance(value, expected if isinstance(expected, type) else ()) or (
        expected is float and isinstance(value, int)
    )


def _hint(name: str, kind: type[Options]) -> str:
    names = [field.name for field in fields(kind)]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(names)}"
