"""The gated activation of SwiGLU: `silu(gate) * up`, where `silu(g) = g / (1 + exp(-g))`.

Source: Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Op


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """The formula, in float32 (float64 for float64 input). Shapes as `silu_mul`."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


_op = Op(
    "silu_mul", reference=silu_mul_reference, cpu=silu_mul_reference, triton=silu_mul_reference
)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gate and up side by side in `[num_tokens, 2 * intermediate]`.

    Returns a new `[num_tokens, intermediate]` of the same dtype.
    """
    return _op.on(gate_up.device)(gate_up)
