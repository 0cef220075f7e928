"""Root-mean-square layer norm: `y = x / sqrt(mean(x^2) + eps) * weight`, row by row.

Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.rms_norm import rms_norm_c, rms_norm_cpu
from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, next_power_of_2, require

if TYPE_CHECKING:
    import triton.language as tl


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, in float32 (float64 for float64 input). Shapes as `rms_norm`."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype)


@LazyKernel
def _rms_norm_kernel(x, weight, out, x_stride, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < hidden
    wide = tl.load(x + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    weights = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, wide * scale * weights, mask=mask)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One program per row, the row in registers: read once, written once.

    Raises:
        ValueError: a row is not contiguous or too long to hold in registers.
    """
    num_tokens, hidden = x.shape
    require(x.stride(1) == 1, "rms_norm: the elements of a row of x must lie side by side")
    require(weight.is_contiguous(), "rms_norm: weight must be contiguous")
    require(hidden <= 32768, f"rms_norm: hidden is {hidden}, and at most 32768 fit one program")
    out = x.new_empty(x.shape)
    if num_tokens:
        block = next_power_of_2(hidden)
        # 256 elements a warp: 8 a thread, two 16-byte loads in half precision
        num_warps = min(max(block // 256, 1), 16)
        _rms_norm_kernel[(num_tokens,)](
            x, weight, out, x.stride(0), hidden, eps, BLOCK=block, num_warps=num_warps
        )
    return out


_op = Op(
    "rms_norm",
    {
        "reference": rms_norm_reference,
        "torch": rms_norm_cpu,
        "c": rms_norm_c,
        "triton": rms_norm_triton,
    },
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each row of x `[num_tokens, hidden]` and scale it by weight `[hidden]`.

    Weight has x's dtype. Returns a new tensor of x's shape and dtype. Rows do not depend on each
    other.
    """
    return _op.on(x)(x, weight, eps)
