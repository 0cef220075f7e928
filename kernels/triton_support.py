"""Triton, when it is needed: imported at the first launch of a kernel, never before.

So the ops' modules import on machines without Triton, and a process that only computes on the CPU
does not pay for it. A kernel runs compiled on a GPU, or under Triton's interpreter when the
environment has `TRITON_INTERPRET=1` before the first launch: that is for tests, and slow.

What the interpreter does not do right (seen with 3.7.1): arithmetic on bfloat16, and rounding when
float32 is stored as bfloat16 (it truncates). So elementwise maths in kernels is float32, and what
goes into `tl.dot` is widened first where a kernel is told to `UPCAST`, which is `interpreted()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter, on tensors of any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class LazyKernel:
    """A kernel written in Triton's language: `kernel[grid](*args)` launches it.

    The first launch binds `tl`, Triton's language, in the module of the kernel.
    """

    def __init__(self, source: Callable[..., None]) -> None:
        self._source = source
        self._jitted: Any = None  # triton's own JITFunction, which has no types

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        if self._jitted is None:
            self._jitted = _jit(self._source)
        launch: Callable[..., object] = self._jitted[grid]
        return launch


def _jit(source: Callable[..., None]) -> Any:
    if not (torch.cuda.is_available() or interpreted()):
        raise RuntimeError(
            f"the Triton kernel {source.__name__} needs a GPU, and torch sees none; "
            "use the CPU implementation"
        )
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise RuntimeError(
            f"the Triton kernel {source.__name__} needs triton, which is not installed; "
            "install turnout[gpu]"
        ) from error
    source.__globals__["tl"] = triton.language
    return triton.jit(source)


def next_power_of_2(size: int) -> int:
    """The smallest power of two that is at least `size`: what a block's extent must be."""
    return 1 << (size - 1).bit_length()


def require(holds: bool, message: str) -> None:
    """Refuse what a kernel would read wrongly.

    Raises:
        ValueError: it does not hold.
    """
    if not holds:
        raise ValueError(message)
