"""Which implementation of an op runs: the one that the table in `choices` has for the device, dtype
and width of a tensor.

A choice is made once per op and kind of tensor, logged, and kept for whoever reports what runs
(`chosen_implementations`). Tests pin another one with `forced`. Imports neither Triton nor the ops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from kernels.choices import Choice, Implementation, name_of, select
from kernels.cpu.library import library

P = ParamSpec("P")
R = TypeVar("R")

Kind = tuple[str, torch.dtype, int]
"""Device type, dtype, width: the elements of a row."""

_logger = logging.getLogger(__name__)
_forced: ContextVar[Implementation | None] = ContextVar("forced_implementation", default=None)
_chosen: dict[str, dict[Kind, Choice]] = {}  # by op


class Op(Generic[P, R]):
    """One op and its implementations, all with one signature. Made once, at import of the op."""

    def __init__(self, name: str, implementations: Mapping[Implementation, Callable[P, R]]) -> None:
        """name: as in the table. implementations: at least those the table has for it."""
        self._name = name
        self._implementations = implementations
        self._by_kind: dict[Kind, Callable[P, R]] = {}

    def on(self, x: Tensor) -> Callable[P, R]:
        """The implementation for x and what comes with it; how many rows x has does not matter.

        Raises:
            NotImplementedError: there is none for this type of device.
        """
        forced = _forced.get()
        if forced is not None:
            return self._implementations[forced]
        # `is_cpu` for speed: 60 ns where the name of the device's type takes 300.
        kind = ("cpu" if x.is_cpu else x.device.type, x.dtype, x.shape[-1])
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = self._implementations[choose(self._name, *kind)]
        return found


def choose(op: str, device_type: str, dtype: torch.dtype, width: int) -> Implementation:
    """What runs an op of the table on such tensors; logged when it is asked first.

    Raises:
        NotImplementedError: there is none for this type of device.
    """
    forced = _forced.get()
    if forced is not None:
        return forced
    kind, chosen = (device_type, dtype, width), _chosen.setdefault(op, {})
    if kind not in chosen:
        has_c = device_type == "cpu" and library() is not None
        chosen[kind] = select(op, *kind, has_c=has_c)
        what = (op, device_type, name_of(dtype), width)
        choice = chosen[kind]
        _logger.info("%s on %s, %s, rows of %d: %s (%s)", *what, choice.implementation, choice.why)
    return chosen[kind].implementation


@contextmanager
def forced(implementation: Implementation) -> Iterator[None]:
    """Every op called within the block runs `implementation`, and `choose` returns it. For tests
    and benchmarks.
    """
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)


def chosen_implementations() -> dict[str, dict[Kind, Choice]]:
    """What has been chosen so far, by op."""
    return {op: dict(by_kind) for op, by_kind in _chosen.items() if by_kind}
