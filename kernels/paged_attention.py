"""Causal attention of this step's queries over the paged KV cache.

Prefill, decode and any mix of them in one call: a sequence's query rows are its last `query_len`
tokens, its keys the first `context_len` slots of its blocks, those rows' own keys included. Grouped
queries: query head h reads kv head `h // (num_heads // num_kv_heads)`.

The CPU implementation gives a token the same bits however its step is composed: see
`kernels/cpu/paged_attention.py`, also for numbers.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.paged_attention import paged_attention_cpu
from kernels.cpu.paged_attention_c import paged_attention_c
from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, interpreted, next_power_of_2, require

if TYPE_CHECKING:
    import triton.language as tl


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """Where each sequence's rows and blocks are in this step; made once, read by every layer.

    The tuples repeat what the tensors say, so that no layer reads a tensor back from a device.
    """

    cu_seqlens_q: Tensor  # [num_seqs + 1] int32: sequence i's query rows are cu[i] : cu[i + 1]
    context_lens: Tensor  # [num_seqs] int32: all tokens of the sequence, this step's included
    block_tables: Tensor  # [num_seqs, max_blocks] int32; entries past the context are never read
    query_lens: tuple[int, ...]
    context_lens_host: tuple[int, ...]

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        device: torch.device,
    ) -> AttentionMetadata:
        """From host values, one entry per sequence; ragged block tables are padded with block 0."""
        width = max(map(len, block_tables), default=0)
        padded = [[*table, *[0] * (width - len(table))] for table in block_tables]

        def int32(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            cu_seqlens_q=int32([0, *accumulate(query_lens)]),
            context_lens=int32(list(context_lens)),
            block_tables=int32(padded).view(len(padded), width),
            query_lens=tuple(query_lens),
            context_lens_host=tuple(context_lens),
        )


def paged_attention_reference(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Sequence by sequence, softmax spelled out, in float32 (float64 for float64 queries)."""
    output = torch.zeros_like(query)
    wide = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // key_cache.shape[1]
    first_row = 0
    for sequence, (query_len, context_len) in enumerate(
        zip(metadata.query_lens, metadata.context_lens_host, strict=True)
    ):
        rows = slice(first_row, first_row + query_len)
        first_row += query_len
        keys, values = (
            _context(cache, metadata.block_tables[sequence], context_len)
            .to(wide)
            .repeat_interleave(group, dim=0)  # [num_heads, context_len, head_dim]
            for cache in (key_cache, value_cache)
        )
        queries = query[rows].to(wide).transpose(0, 1)  # [num_heads, query_len, head_dim]
        scores = queries @ keys.transpose(1, 2) * scale
        positions = torch.arange(context_len, device=query.device)
        own_positions = positions[context_len - query_len :, None]
        seen = positions <= own_positions
        if window:
            seen &= positions > own_positions - window
            # What no row sees may have been given back, and be anything.
            keys[:, ~seen.any(dim=0)] = 0
            values[:, ~seen.any(dim=0)] = 0
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        output[rows] = (weights @ values).transpose(0, 1).to(query.dtype)
    return output


def _context(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """One sequence's keys or values in order: `[num_kv_heads, context_len, head_dim]`."""
    num_blocks = -(-context_len // cache.shape[2])
    blocks = cache[block_table[:num_blocks].long()]
    return blocks.transpose(0, 1).flatten(1, 2)[:, :context_len]


@LazyKernel
def _paged_attention_kernel(
    out, query, key_cache, value_cache, cu_seqlens_q, context_lens, block_tables,
    scale_log2, query_stride, table_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, SLOTS: tl.constexpr,
    DIM: tl.constexpr, WINDOW: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1)
    kv_head = tl.program_id(2)
    first_row = tl.load(cu_seqlens_q + sequence)
    query_len = tl.load(cu_seqlens_q + sequence + 1) - first_row
    first_token = tl.program_id(0) * TOKENS
    if first_token >= query_len:
        return
    # Rows: the queries of TOKENS tokens, GROUP heads each; ROWS is the next power of two.
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP
    dim = tl.arange(0, DIM)
    in_head = (dim < HEAD_DIM)[None, :]
    mask = ((row // GROUP < TOKENS) & (token < query_len))[:, None] & in_head
    head = kv_head * GROUP + row % GROUP
    query_at = (first_row + token).to(tl.int64) * query_stride + head * HEAD_DIM
    queries = tl.load(query + query_at[:, None] + dim[None, :], mask=mask, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    context_len = tl.load(context_lens + sequence)
    position = context_len - query_len + token
    end = tl.minimum(context_len, context_len - query_len + first_token + TOKENS)
    table = block_tables + sequence.to(tl.int64) * table_stride
    # The running softmax: greatest score so far, sum of exponentials, weighted sum of values.
    # The first is below any score, but finite: a row whose window begins in a later tile must not
    # subtract an infinity from another.
    greatest = tl.full([ROWS], -1.0e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, DIM], tl.float32)
    hidden = context_len - query_len + first_token - WINDOW + 1  # slots before the first window
    seen_from = tl.maximum(0, hidden) if WINDOW else 0
    for start in range(seen_from // SLOTS * SLOTS, end, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        in_context = (slot >= seen_from) & (slot < end)
        block = tl.load(table + slot // BLOCK_SIZE, mask=in_context, other=0).to(tl.int64)
        place = (block * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
        cache_at = place[:, None] * HEAD_DIM + dim[None, :]
        # Masked loads give 0, so what lies in free blocks and tail slots, even NaN, is never seen.
        cache_mask = in_context[:, None] & in_head
        keys = tl.load(key_cache + cache_at, mask=cache_mask, other=0.0)
        values = tl.load(value_cache + cache_at, mask=cache_mask, other=0.0)
        if UPCAST:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale_log2
        seen = slot[None, :] <= position[:, None]
        if WINDOW:
            seen = seen & (slot[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new_greatest = tl.maximum(greatest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_greatest[:, None])
        decay = tl.exp2(greatest - new_greatest)
        total = total * decay + tl.sum(weights, axis=1)
        added = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        attended = attended * decay[:, None] + added
        greatest = new_greatest

    out_at = (first_row + token).to(tl.int64) * (NUM_KV_HEADS * GROUP * HEAD_DIM) + head * HEAD_DIM
    tl.store(out + out_at[:, None] + dim[None, :], attended / total[:, None], mask=mask)


def paged_attention_triton(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
) -> Tensor:
    """One program per sequence, kv head and `TOKENS` queries; it walks the context once.

    The group's heads share their kv head's program, so keys and values are read once for all of
    them. The grid is as long as the longest query; in a mixed step the surplus programs of the
    short ones return at once. Decoding takes 16 rows, the least a tensor core does, with 4 warps;
    prefill takes 64 and twice the warps. But for that choice, no program depends on the other
    sequences. The sizes are rules of thumb and not yet measured on a GPU.

    Raises:
        ValueError: strides or dtypes the kernel does not follow.
    """
    _check(query, key_cache, value_cache, metadata)
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    group = query.shape[1] // num_kv_heads
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    longest = max(metadata.query_lens, default=0)
    if longest == 0:
        return out
    rows = max(16 if longest == 1 else 64, next_power_of_2(group))
    tokens = rows // group
    dim = max(16, next_power_of_2(head_dim))
    grid = (-(-longest // tokens), len(metadata.query_lens), num_kv_heads)
    _paged_attention_kernel[grid](
        out, query, key_cache, value_cache, metadata.cu_seqlens_q, metadata.context_lens,
        metadata.block_tables, scale * _LOG2_E, query.stride(0), metadata.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size, TOKENS=tokens, ROWS=rows,
        SLOTS=min(64, _KEY_TILE_BYTES // (dim * query.itemsize)), DIM=dim, WINDOW=window,
        UPCAST=interpreted(),
        num_warps=4 if longest == 1 else 8,
    )  # fmt: skip
    return out


_KEY_TILE_BYTES = 16384  # three stages of keys and values are 96 KiB, which any GPU since 2020 has
_LOG2_E = math.log2(math.e)  # the kernel's exponentials have base 2, which the GPU computes itself


def _check(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata
) -> None:
    num_heads, num_kv_heads, head_dim = query.shape[1], key_cache.shape[1], query.shape[2]
    require(
        num_heads % num_kv_heads == 0,
        f"paged_attention: {num_heads} query heads do not share {num_kv_heads} kv heads evenly",
    )
    require(
        query.stride(2) == 1 and query.stride(1) == head_dim,
        "paged_attention: the heads of one token must lie side by side in query",
    )
    for cache in (key_cache, value_cache):
        require(cache.is_contiguous(), "paged_attention: the caches must be contiguous")
        require(
            cache.dtype == query.dtype,
            f"paged_attention: query is {query.dtype} and the cache {cache.dtype}; they must agree",
        )
    require(metadata.block_tables.stride(1) == 1, "paged_attention: rows of block_tables are split")


def _paged_attention_cpu(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
) -> Tensor:
    return paged_attention_cpu(
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.query_lens,
        metadata.context_lens_host,
        scale,
        window,
    )


def _paged_attention_c(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
) -> Tensor:
    return paged_attention_c(
        query,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.cu_seqlens_q,
        metadata.context_lens,
        num_rows=sum(metadata.query_lens),
        scale=scale,
        window=window,
    )


_op = Op(
    "paged_attention",
    {
        "reference": paged_attention_reference,
        "torch": _paged_attention_cpu,
        "c": _paged_attention_c,
        "triton": paged_attention_triton,
    },
)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int = 0,
) -> Tensor:
    """Attend from query `[num_tokens, num_heads, head_dim]` over the caches `[num_blocks,
    num_kv_heads, block_size, head_dim]`, into which this step's keys and values are stored already.
    A token at position p sees positions `p - window + 1 .. p`; with window 0 it sees all before it.

    Returns a new tensor like query. Rows beyond the last sequence's (a step's padding) are zero. A
    sequence of query length 0 has no rows; its context is not read.
    """
    return _op.on(query)(query, key_cache, value_cache, metadata, scale, window)
