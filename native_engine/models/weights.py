"""A model's tensors, taken one by one and checked; at the end none may be left over.

Names are those of Hugging Face checkpoints (`model.layers.0.self_attn.q_proj.weight`); a file that
spells them otherwise translates. Does not know file formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from native_engine.errors import ModelFileError

_HARMLESS_SUFFIXES = ("rotary_emb.inv_freq",)  # follows from the configuration; old files carry it


class TensorSource(Protocol):
    """An open model file, or several."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is; one without a common name keeps its own."""
        ...

    def place(self, name: str) -> str:
        """`file: tensor name`, as the file spells it, for messages; `name` need not exist."""
        ...

    def read(self, name: str) -> Tensor:
        """The whole tensor, floating point, on the CPU; the caller may keep and change it.

        Raises:
            ModelFileError: it holds whole numbers, or cannot be read.
        """
        ...


class Weights:
    """Hands out the tensors of a source in one dtype on one device. Used while a model loads."""

    def __init__(self, source: TensorSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device
        self._shapes = source.shapes
        self._left = {name for name in self._shapes if not name.endswith(_HARMLESS_SUFFIXES)}

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape the file gives.

        Raises:
            ModelFileError: there is no such tensor.
        """
        if name not in self._shapes:
            raise ModelFileError(f"{self._source.place(name)} is missing")
        return self._shapes[name]

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, which must have this shape.

        Raises:
            ModelFileError: it is missing, of another shape, or not of floating point.
        """
        if self.shape(name) != shape:
            raise ModelFileError(
                f"{self._source.place(name)} has shape {list(self._shapes[name])}, "
                f"but the configuration asks for {list(shape)}"
            )
        tensor = self._source.read(name)
        self._left.discard(name)
        return tensor.to(device=self._device, dtype=self._dtype)

    def check_none_left(self) -> None:
        """Raises:
        ModelFileError: the file has tensors that nobody took: it is not the model it says it is.
        """
        if self._left:
            first, others = min(self._left), len(self._left) - 1
            more = f" (and {others} more)" if others else ""
            raise ModelFileError(f"{self._source.place(first)} is not part of this model{more}")
