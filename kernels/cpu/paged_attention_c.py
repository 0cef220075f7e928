"""Paged attention on the CPU in C: blocks are read where they lie, nothing is gathered ahead.

A token's bits depend on its own context alone, by construction: see `paged_attention.c`. Knows
neither dispatch nor `AttentionMetadata`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.cpu.library import are_rows, loaded_library


def takes(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether the kernel can read these; torch's operators take the others."""
    return (
        are_rows(query, key_cache, value_cache)
        and key_cache.is_contiguous()
        and value_cache.is_contiguous()
        and query.shape[2] <= _max_head_dim()
    )


def paged_attention_c(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    *,
    num_rows: int,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Causal attention of `[num_tokens, num_heads, head_dim]` queries; zeros from row `num_rows`.

    Caches `[num_blocks, num_kv_heads, block_size, head_dim]`, all `takes` them. block_tables
    `[num_seqs, max_blocks]`, cu_seqlens_q `[num_seqs + 1]` and context_lens `[num_seqs]` int32. A
    token sees the last `window` tokens, itself included, or with 0 all. Returns a new tensor.
    """
    if query.stride(1) != query.shape[2]:
        query = query.contiguous()
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    out = query.new_empty(query.shape)
    out[num_rows:] = 0
    loaded_library().turnout_paged_attention(
        out.data_ptr(), query.data_ptr(), key_cache.data_ptr(), value_cache.data_ptr(),
        block_tables.data_ptr(), cu_seqlens_q.data_ptr(), context_lens.data_ptr(),
        len(context_lens), block_tables.stride(0), query.stride(0), num_kv_heads,
        query.shape[1] // num_kv_heads, head_dim, block_size, window, scale,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


@cache
def _max_head_dim() -> int:
    return int(loaded_library().turnout_max_head_dim())
