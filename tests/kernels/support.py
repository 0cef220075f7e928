"""What the kernel tests share: the implementations, where they run, what rounding they may show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.choices import Implementation, name_of

IMPLEMENTATIONS: tuple[Implementation, ...] = ("reference", "torch", "c", "triton")

every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
but_c = pytest.mark.parametrize("implementation", ["reference", "torch", "triton"])
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["float32", "float16", "bfloat16"]
)
every_pair = pytest.mark.parametrize(  # C takes float32 alone
    ("implementation", "dtype"),
    [
        pytest.param(implementation, dtype, id=f"{implementation}-{name_of(dtype)}")
        for implementation in IMPLEMENTATIONS
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        if implementation != "c" or dtype == torch.float32
    ],
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
