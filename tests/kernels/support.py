"""What the kernel tests share: the implementations, where they run, what rounding they may show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Implementation

IMPLEMENTATIONS: tuple[Implementation, ...] = ("reference", "cpu", "c", "triton")

every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["float32", "float16", "bfloat16"]
)

# Two units in the last place: one of the result, one because the interpreter truncates bfloat16.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Float32 draws from the normal distribution, the same for the same shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def device_of(implementation: Implementation) -> torch.device:
    """A GPU for Triton where there is one; else Triton's interpreter takes CPU tensors."""
    on_gpu = implementation == "triton" and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """`actual`, computed in `dtype`, against `expected` in float64."""
    assert actual.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=tolerance, atol=tolerance)
