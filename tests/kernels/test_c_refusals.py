"""What the C kernels would read wrongly they refuse, by name: nothing falls back in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.dispatch import forced
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.rms_norm import rms_norm
from kernels.rotary import apply_rotary
from kernels.silu_mul import silu_mul
from kernels.store_kv import store_kv

CACHE = torch.zeros(2, 1, 16, 8)
ROWS = torch.zeros(4, 8)
HEADS = torch.zeros(4, 1, 8)
ANGLES = torch.zeros(9, 4)
PLACES = torch.arange(4)
ONE_SEQUENCE = AttentionMetadata.build(
    query_lens=[4], context_lens=[4], block_tables=[[0]], device=torch.device("cpu")
)


def attend(query: Tensor, cache: Tensor) -> object:
    return paged_attention(query, cache, cache, ONE_SEQUENCE, 1.0)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: rms_norm(ROWS.half(), torch.ones(8), 1e-5), "rms_norm: .* not torch.float16"),
        (lambda: rms_norm(ROWS, torch.ones(8).half(), 1e-5), "rms_norm: .* not torch.float16"),
        (lambda: rms_norm(ROWS.T, torch.ones(4), 1e-5), r"rms_norm: .* strides \(1, 8\)"),
        (lambda: silu_mul(ROWS.half()), "silu_mul: .* not torch.float16"),
        (lambda: silu_mul(ROWS.T), r"silu_mul: .* strides \(1, 8\)"),
        (
            lambda: apply_rotary(HEADS, HEADS.half(), ANGLES, ANGLES, PLACES),
            "apply_rotary: .* not torch.float16",
        ),
        (
            lambda: apply_rotary(HEADS, HEADS, ANGLES[:, :2], ANGLES, PLACES),
            "cos, sin and positions must be contiguous",
        ),
        (
            lambda: store_kv(HEADS, HEADS, CACHE.half(), CACHE, PLACES),
            "store_kv: .* not torch.float16",
        ),
        (
            lambda: store_kv(HEADS, HEADS, CACHE[:, :, ::2], CACHE, PLACES),
            "the caches and slot_mapping must be contiguous",
        ),
        (
            lambda: store_kv(HEADS, torch.zeros(4, 2, 16)[:, :, :8], CACHE, CACHE, PLACES),
            "the heads of one token must lie side by side",
        ),
        (lambda: attend(HEADS.half(), CACHE), "paged_attention: .* not torch.float16"),
        (
            lambda: attend(torch.zeros(4, 1, 257), torch.zeros(2, 1, 16, 257)),
            "head_dim is 257, the C kernel holds 256",
        ),
    ],
)
def test_c_refuses_what_it_would_read_wrongly(call: Callable[[], object], complaint: str) -> None:
    with forced("c"), pytest.raises(ValueError, match=complaint):
        call()
