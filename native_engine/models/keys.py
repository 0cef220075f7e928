"""The keys of a model's configuration, read one by one with their types checked.

Serves config.json and GGUF metadata alike. A JSON null counts as absent. Every complaint names the
file and the key. What was read is remembered, so that a key that nobody knows can be refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar, cast

from native_engine.errors import ModelFileError

T = TypeVar("T", int, float, str, bool)


class Keys:
    """Typed reads from one mapping of one file. `prefix` stands before every key in messages."""

    def __init__(self, path: Path, values: Mapping[str, object], *, prefix: str = "") -> None:
        self._path = path
        self._values = values
        self._prefix = prefix
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether it is there and says null, where that means other than absence."""
        return key in self._values and self._values[key] is None

    def error(self, key: str, problem: str) -> ModelFileError:
        """For the caller to raise: `problem` completes "file: key ..."."""
        return ModelFileError(f"{self._path}: {self._prefix}{key} {problem}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._typed(key, int, default)
        if value < 1:
            raise self.error(key, f"is {value}; it must be at least 1")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = float(self._typed(key, float, default))
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, f"is {value}; it must be a finite number above 0")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        return self._typed(key, bool, default)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return self._typed(key, str, default)

    def strings(self, key: str) -> list[str]:
        """A list of strings."""
        return self._list(key, str)

    def flags(self, key: str) -> list[bool]:
        """A list of true and false."""
        return self._list(key, bool)

    def is_list(self, key: str) -> bool:
        """Whether it is there and holds a list, where it may hold one value for all as well."""
        return isinstance(self._get(key), list)

    def section(self, key: str) -> Keys | None:
        """The keys of a nested mapping, or None."""
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, f"is {value!r:.80}; it must be a mapping")
        values = cast("Mapping[str, object]", value)
        return Keys(self._path, values, prefix=f"{self._prefix}{key}.")

    def check_all_read(self, *, harmless: Collection[str] = ()) -> None:
        """Raises:
        ModelFileError: a key was never asked for and is not among those that change nothing.
        """
        for key, value in self._values.items():
            if value is not None and key not in self._read and key not in harmless:
                raise self.error(key, "is set, and what it asks for is not implemented")

    def _get(self, key: str) -> object:
        self._read.add(key)
        return self._values.get(key)

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.error(key, f"is {value!r:.80}; it must be a list of {kind.__name__}")
        return cast("list[T]", value)

    def _typed(self, key: str, kind: type[T], default: T | None) -> T:
        value = self._get(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing")
            return default
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"is {value!r:.80}; its type must be {kind.__name__}")
        return cast(T, value)
