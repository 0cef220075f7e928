"""The gated activation of GeGLU: `gelu(gate) * up`, gelu by its tanh approximation.

    gelu(g) = g / 2 * (1 + tanh(u)) = g / (1 + exp(-2u)),  u = sqrt(2 / pi) * (g + 0.044715 g^3)

The second form is the one computed: one exponential, whose bits on the CPU do not depend on how
many other rows there are, as `silu_mul` says of `torch.exp`. The CPU runs the reference.

Sources: Shazeer, "GLU Variants Improve Transformer", 2020; Hendrycks and Gimpel, "Gaussian Error
Linear Units", 2016.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, require

if TYPE_CHECKING:
    import triton.language as tl

_TWICE_ROOT = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # the paper's


def gelu_mul_reference(gate_up: Tensor) -> Tensor:
    """The formula, in float32 (float64 for float64 input). Shapes as `gelu_mul`."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    twice = _TWICE_ROOT * (gate + _CUBIC * gate * gate * gate)
    return (gate / (1 + torch.exp(-twice)) * up).to(gate_up.dtype)


@LazyKernel
def _gelu_mul_kernel(gate_up, out, stride, intermediate, twice_root, cubic, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < intermediate
    source = gate_up + row * stride + columns
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + intermediate, mask=mask, other=0.0).to(tl.float32)
    twice = twice_root * (gate + cubic * gate * gate * gate)
    tl.store(out + row * intermediate + columns, gate / (1.0 + tl.exp(-twice)) * up, mask=mask)


_BLOCK = 1024  # elements a program, as in `silu_mul`


def gelu_mul_triton(gate_up: Tensor) -> Tensor:
    """Programs by row and by `_BLOCK` columns, so that a step of one row still fills a GPU.

    Raises:
        ValueError: a row is not contiguous, or its length is odd.
    """
    num_tokens, width = gate_up.shape
    require(
        width % 2 == 0, f"gelu_mul: a row has {width} elements, gate and up need an even number"
    )
    require(gate_up.stride(1) == 1, "gelu_mul: the elements of a row must lie side by side")
    intermediate = width // 2
    out = gate_up.new_empty(num_tokens, intermediate)
    if out.numel():
        grid = (num_tokens, -(-intermediate // _BLOCK))
        _gelu_mul_kernel[grid](
            gate_up, out, gate_up.stride(0), intermediate, _TWICE_ROOT, _CUBIC, BLOCK=_BLOCK
        )
    return out


_op = Op(
    "gelu_mul",
    {
        "reference": gelu_mul_reference,
        "torch": gelu_mul_reference,
        "triton": gelu_mul_triton,
    },
)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Gate and up side by side in `[num_tokens, 2 * intermediate]`.

    Returns a new `[num_tokens, intermediate]` of the same dtype.
    """
    return _op.on(gate_up)(gate_up)
