"""Causal attention of this step's queries over the paged KV cache.

Prefill, decode and any mix of them in one call: a sequence's query rows are its last `query_len`
tokens, its keys the first `context_len` slots of its blocks, those rows' own keys included. Grouped
queries: query head h reads kv head `h // (num_heads // num_kv_heads)`.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.dispatch import Op


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
        seen = positions <= positions[context_len - query_len :, None]
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        output[rows] = (weights @ values).transpose(0, 1).to(query.dtype)
    return output


def _context(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """One sequence's keys or values in order: `[num_kv_heads, context_len, head_dim]`."""
    num_blocks = -(-context_len // cache.shape[2])
    blocks = cache[block_table[:num_blocks].long()]
    return blocks.transpose(0, 1).flatten(1, 2)[:, :context_len]


_op = Op(
    "paged_attention",
    reference=paged_attention_reference,
    cpu=paged_attention_reference,
    triton=paged_attention_reference,
)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    metadata: AttentionMetadata,
    scale: float,
) -> Tensor:
    """Attend from query `[num_tokens, num_heads, head_dim]` over the caches `[num_blocks,
    num_kv_heads, block_size, head_dim]`, into which this step's keys and values are stored already.

    Returns a new tensor like query. Rows beyond the last sequence's (a step's padding) are zero. A
    sequence of query length 0 has no rows; its context is not read.
    """
    return _op.on(query.device)(query, key_cache, value_cache, metadata, scale)
