"""Paged attention on the CPU in C: blocks are read where they lie, nothing is gathered ahead.

A token's bits depend on its own context alone, by construction: see `paged_attention.c`. Knows
neither dispatch nor `AttentionMetadata`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.cpu.library import loaded_library, require_contiguous, require_rows


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

    Caches `[num_blocks, num_kv_heads, block_size, head_dim]`. block_tables `[num_seqs,
    max_blocks]`, cu_seqlens_q `[num_seqs + 1]` and context_lens `[num_seqs]` int32. A token sees
    the last `window` tokens, itself included, or with 0 all. Returns a new tensor.

    Raises:
        ValueError: a tensor is not float32, a cache is not contiguous, or a head is too large.
    """
    require_rows("paged_attention", query, key_cache, value_cache)
    require_contiguous("paged_attention", "the caches", key_cache, value_cache)
    if query.shape[2] > max_head_dim():
        raise ValueError(
            f"paged_attention: head_dim is {query.shape[2]}, the C kernel holds {max_head_dim()}"
        )
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
def max_head_dim() -> int:
    """Elements of the largest head that the kernel has room for."""
    return int(loaded_library().turnout_max_head_dim())
