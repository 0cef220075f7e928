"""Rotary position embedding in the half-split (NeoX) layout, in place.

Dimension i of the first half turns with dimension i of the second half by the angle of (position,
i). Only the first `rotary_dim` dimensions of a head turn; the rest stay as they are.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.dispatch import Op


def apply_rotary_reference(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
) -> None:
    """The rotation, in float32 (float64 for float64 heads). Shapes as `apply_rotary`."""
    half = cos.shape[-1]
    for heads in (query, key):
        wide = torch.promote_types(heads.dtype, torch.float32)
        cos_rows = cos[positions].unsqueeze(1).to(wide)  # [num_tokens, 1, rotary_dim / 2]
        sin_rows = sin[positions].unsqueeze(1).to(wide)
        first = heads[..., :half].to(wide)
        second = heads[..., half : 2 * half].to(wide)
        rotated = (first * cos_rows - second * sin_rows, second * cos_rows + first * sin_rows)
        heads[..., : 2 * half] = torch.cat(rotated, dim=-1).to(heads.dtype)


_op = Op(
    "apply_rotary",
    reference=apply_rotary_reference,
    cpu=apply_rotary_reference,
    triton=apply_rotary_reference,
)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """Turn every head of query and key, in place, to its token's position.

    query `[num_tokens, num_heads, head_dim]`, key `[num_tokens, num_kv_heads, head_dim]`; cos and
    sin `[max_positions, rotary_dim / 2]` float32; positions `[num_tokens]` int64.
    """
    _op.on(query.device)(query, key, cos, sin, positions)
