"""The gated activation of SwiGLU: `silu(gate) * up`, where `silu(g) = g / (1 + exp(-g))`.

Without the C kernels the CPU runs the reference. It must not run `torch.nn.functional.silu`: where
that cuts a tensor between threads its exponentials differ in the last bit, so a row's result would
depend on how many others there are (seen with 3 threads from 32 rows of 8192, with 2 from 33 rows
of 1000). Those of `torch.exp` do not (compared for 8 widths, up to 300 rows and 7 threads).

Source: Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.silu_mul import silu_mul_c
from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, require

if TYPE_CHECKING:
    import triton.language as tl


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The formula, in float32 (float64 for float64 input). Shapes as `silu_mul`."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


@LazyKernel
def _silu_mul_kernel(gate_up, out, stride, intermediate, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < intermediate
    source = gate_up + row * stride + columns
    gate = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(source + intermediate, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * intermediate + columns, gate / (1.0 + tl.exp(-gate)) * up, mask=mask)


_BLOCK = 1024  # elements a program: 8 a thread with 4 warps, two 16-byte loads in float32


def silu_mul_triton(gate_up: Tensor) -> Tensor:
    """Programs by row and by `_BLOCK` columns, so that a step of one row still fills a GPU.

    Raises:
        ValueError: a row is not contiguous, or its length is odd.
    """
    num_tokens, width = gate_up.shape
    require(
        width % 2 == 0, f"silu_mul: a row has {width} elements, gate and up need an even number"
    )
    require(gate_up.stride(1) == 1, "silu_mul: the elements of a row must lie side by side")
    intermediate = width // 2
    out = gate_up.new_empty(num_tokens, intermediate)
    if out.numel():
        grid = (num_tokens, -(-intermediate // _BLOCK))
        _silu_mul_kernel[grid](gate_up, out, gate_up.stride(0), intermediate, BLOCK=_BLOCK)
    return out


_op = Op(
    "silu_mul",
    {
        "reference": silu_mul_reference,
        "torch": silu_mul_reference,
        "c": silu_mul_c,
        "triton": silu_mul_triton,
    },
)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate and up side by side in `[num_tokens, 2 * intermediate]`.

    Returns a new `[num_tokens, intermediate]` of the same dtype.
    """
    return _op.on(gate_up)(gate_up)
