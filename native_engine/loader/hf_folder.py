"""A Hugging Face model folder: config.json and the tensors of its safetensors files.

One file `model.safetensors`, or several listed in `model.safetensors.index.json`. Knows no
architecture; never unpickles anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from native_engine.errors import ModelFileError
from native_engine.models.keys import Keys

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATING_DTYPES = ("F64", "F32", "F16", "BF16")


def read_config(folder: Path) -> Keys:
    """The keys of config.json.

    Raises:
        ModelFileError: it is missing or not a JSON object.
    """
    path = folder / "config.json"
    return Keys(path, _read_json(path))


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class _Shard(Protocol):
    """What we use of `safe_open`, which comes without types."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> Tensor: ...


class HFFolder:
    """A `TensorSource` over a folder, whose files stay mapped while this object lives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards = {path: _open(path) for path in _shard_paths(folder)}
        self._shard_of: dict[str, Path] = {}
        for path, shard in self._shards.items():
            for name in shard.keys():  # noqa: SIM118  # a handle, not a mapping
                if name in self._shard_of:
                    other = self._shard_of[name].name
                    raise ModelFileError(f"{path}: tensor {name} is in {other} as well")
                self._shard_of[name] = path
        _check_index(folder, self._shard_of)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            name: tuple(self._shards[path].get_slice(name).get_shape())
            for name, path in self._shard_of.items()
        }

    def place(self, name: str) -> str:
        return f"{self._shard_of.get(name, self._folder)}: tensor {name}"

    def read(self, name: str) -> Tensor:
        shard = self._shards[self._shard_of[name]]
        dtype = shard.get_slice(name).get_dtype()
        if dtype not in _FLOATING_DTYPES:
            raise ModelFileError(
                f"{self.place(name)} is of dtype {dtype}; this reads {', '.join(_FLOATING_DTYPES)}"
            )
        return shard.get_tensor(name)


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return cast("dict[str, object]", value)


def _shard_paths(folder: Path) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    if (folder / _INDEX).exists():
        return [folder / file for file in sorted(set(_weight_map(folder).values()))]
    raise ModelFileError(
        f"{folder}: neither {_SINGLE} nor {_INDEX} is there; "
        "convert other formats to safetensors first"
    )


def _weight_map(folder: Path) -> Mapping[str, str]:
    path = folder / _INDEX
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: weight_map is missing")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelFileError(f"{path}: tensor {name}: {file!r} is not a file name")
    return cast("dict[str, str]", weight_map)


def _check_index(folder: Path, shard_of: Mapping[str, Path]) -> None:
    """An index that does not match its files tells of an interrupted or mixed-up download."""
    if (folder / _SINGLE).exists():
        return
    for name, file in _weight_map(folder).items():
        if shard_of.get(name) != folder / file:
            raise ModelFileError(
                f"{folder / file}: tensor {name} is missing, but {_INDEX} lists it"
            )


def _open(path: Path) -> _Shard:
    try:
        return cast(_Shard, safe_open(path, framework="pt"))
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}; download it again") from error
