"""Which implementation of an op runs: Triton for CUDA tensors; for CPU tensors the one in C, or
torch's operators where there is no C compiler.

The choice is made once per op and device type, logged, and kept for whoever reports what runs
(`chosen_implementations`). Tests pin another one with `forced`. Knows no op by name; imports
neither Triton nor the ops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, Literal, ParamSpec, TypeVar

import torch

from kernels.cpu.library import library

P = ParamSpec("P")
R = TypeVar("R")

Implementation = Literal["reference", "cpu", "c", "triton"]

_logger = logging.getLogger(__name__)
_forced: ContextVar[Implementation | None] = ContextVar("forced_implementation", default=None)
_chosen: dict[str, dict[str, Implementation]] = {}  # op name -> device type -> implementation
_BY_DEVICE_TYPE: dict[str, Implementation] = {"cpu": "cpu", "cuda": "triton"}


class Op(Generic[P, R]):
    """One op and its implementations, all with one signature. Made once, at import of the op."""

    def __init__(
        self,
        name: str,
        *,
        reference: Callable[P, R],
        cpu: Callable[P, R],
        triton: Callable[P, R],
        c: Callable[P, R] | None = None,
    ) -> None:
        """`cpu` is torch's operators, and what `c` itself falls back to for other dtypes. An op
        without `c` has `cpu` in its place.
        """
        self.name = name
        self._has_c = c is not None
        self._chosen = _chosen.setdefault(name, {})
        self._implementations: dict[Implementation, Callable[P, R]] = {
            "reference": reference,
            "cpu": cpu,
            "triton": triton,
            "c": c or cpu,
        }

    def on(self, device: torch.device) -> Callable[P, R]:
        """The implementation for tensors on `device`.

        Raises:
            NotImplementedError: there is none for this type of device.
        """
        forced = _forced.get()
        if forced is not None:
            return self._implementations[forced]
        return self._implementations[self._chosen.get(device.type) or self._choose(device.type)]

    def _choose(self, device_type: str) -> Implementation:
        if device_type not in _BY_DEVICE_TYPE:
            raise NotImplementedError(
                f"{self.name} runs on {' and '.join(_BY_DEVICE_TYPE)}, not on {device_type!r}"
            )
        chosen = _BY_DEVICE_TYPE[device_type]
        if chosen == "cpu" and self._has_c and library() is not None:
            chosen = "c"
        self._chosen[device_type] = chosen
        _logger.info("%s on %s: %s", self.name, device_type, chosen)
        return chosen


@contextmanager
def forced(implementation: Implementation) -> Iterator[None]:
    """Every op called within the block runs `implementation`. For tests and benchmarks."""
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)


def chosen_implementations() -> dict[str, dict[str, Implementation]]:
    """What has been chosen so far: op name -> device type -> implementation."""
    return {op: dict(by_device_type) for op, by_device_type in _chosen.items() if by_device_type}
