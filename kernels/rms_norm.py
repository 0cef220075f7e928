"""Root-mean-square layer norm: `y = x / sqrt(mean(x^2) + eps) * weight`, row by row.

Source: Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Op


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula, in float32 (float64 for float64 input). Shapes as `rms_norm`."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (normed * weight.to(wide.dtype)).to(x.dtype)


_op = Op(
    "rms_norm", reference=rms_norm_reference, cpu=rms_norm_reference, triton=rms_norm_reference
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm each row of x `[num_tokens, hidden]` and scale it by weight `[hidden]`.

    Returns a new tensor of x's shape and dtype. Rows do not depend on each other.
    """
    return _op.on(x.device)(x, weight, eps)
