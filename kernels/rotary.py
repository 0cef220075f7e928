"""Rotary position embedding in the half-split (NeoX) layout, in place.

Dimension i of the first half turns with dimension i of the second half by the angle of (position,
i). Only the first `rotary_dim` dimensions of a head turn; the rest stay as they are.

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.rotary import apply_rotary_c, apply_rotary_cpu
from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, next_power_of_2, require

if TYPE_CHECKING:
    import triton.language as tl


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


@LazyKernel
def _rotate_kernel(
    heads, cos, sin, positions, token_stride, head_stride, num_heads, half,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    in_half = pair < half
    mask = (head < num_heads) & in_half
    angle = tl.load(positions + token) * half + pair
    cos_row = tl.load(cos + angle, mask=in_half, other=0.0)
    sin_row = tl.load(sin + angle, mask=in_half, other=0.0)
    first_at = heads + token * token_stride + head * head_stride + pair
    second_at = first_at + half
    first = tl.load(first_at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=mask, other=0.0).to(tl.float32)
    tl.store(first_at, first * cos_row - second * sin_row, mask=mask)
    tl.store(second_at, second * cos_row + first * sin_row, mask=mask)


def apply_rotary_triton(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor
) -> None:
    """One program per token turns all heads, so a token's angles are read once; query, then key.

    Raises:
        ValueError: strides the kernel does not follow.
    """
    half = cos.shape[1]
    for table in (cos, sin):
        require(
            table.is_contiguous() and table.dtype == torch.float32,
            "apply_rotary: cos and sin must be contiguous float32 tables",
        )
    require(positions.is_contiguous(), "apply_rotary: positions must be contiguous")
    for heads in (query, key):
        require(heads.stride(2) == 1, "apply_rotary: a head's elements must lie side by side")
        require(2 * half <= heads.shape[2], "apply_rotary: rotary_dim must not exceed head_dim")
        num_tokens, num_heads = heads.shape[:2]
        if num_tokens:
            _rotate_kernel[(num_tokens,)](
                heads, cos, sin, positions, heads.stride(0), heads.stride(1), num_heads, half,
                HEADS=next_power_of_2(num_heads), HALF=next_power_of_2(half),
            )  # fmt: skip


_op = Op(
    "apply_rotary",
    {
        "reference": apply_rotary_reference,
        "torch": apply_rotary_cpu,
        "c": apply_rotary_c,
        "triton": apply_rotary_triton,
    },
)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> None:
    """Turn every head of query and key, in place, to its token's position.

    query `[num_tokens, num_heads, head_dim]`, key `[num_tokens, num_kv_heads, head_dim]`; cos and
    sin `[max_positions, rotary_dim / 2]` float32; positions `[num_tokens]` int64.
    """
    _op.on(query)(query, key, cos, sin, positions)
