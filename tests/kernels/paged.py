"""Steps for the attention tests: sequences laid out in a poisoned cache, and what they must give.

Every slot that holds no token of a sequence is NaN, in free blocks as in the tails of used ones,
and so is every slot that no row's window reaches: one read too many shows in the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.paged_attention import AttentionMetadata, paged_attention
from tests.kernels.support import device_of, normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The sizes a model fixes."""

    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int = 0  # tokens one sees; 0: all

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A sequence's whole context, and how many of its last tokens this step computes."""

    query: Tensor  # [context_len, num_heads, head_dim]
    key: Tensor  # [context_len, num_kv_heads, head_dim]
    value: Tensor
    query_len: int

    @property
    def context_len(self) -> int:
        return len(self.key)

    def chunk(self, first: int, stop: int) -> Context:
        """The step that computes tokens `first : stop`, those before being in the cache."""
        return Context(
            query=self.query[:stop],
            key=self.key[:stop],
            value=self.value[:stop],
            query_len=stop - first,
        )


def make_sequence(heads: Heads, *, query_len: int, context_len: int, seed: int = 0) -> Context:
    query = normal(context_len, heads.num_heads, heads.head_dim, seed=3 * seed)
    key = normal(context_len, heads.num_kv_heads, heads.head_dim, seed=3 * seed + 1)
    value = normal(context_len, heads.num_kv_heads, heads.head_dim, seed=3 * seed + 2)
    return Context(
        query=query.to(heads.dtype),
        key=key.to(heads.dtype),
        value=value.to(heads.dtype),
        query_len=query_len,
    )


def run(
    implementation: Implementation,
    heads: Heads,
    sequences: Sequence[Context],
    *,
    padding: int = 0,
    seed: int = 0,
) -> list[Tensor]:
    """Lay the sequences out in shuffled blocks and attend: one output per sequence, then padding's.

    The padding rows' queries are NaN.
    """
    device = device_of(implementation)
    caches, block_tables = _lay_out(heads, sequences, seed)
    query_lens = [sequence.query_len for sequence in sequences]
    metadata = AttentionMetadata.build(
        query_lens=query_lens,
        context_lens=[sequence.context_len for sequence in sequences],
        block_tables=block_tables,
        device=device,
    )
    poison = torch.full((padding, heads.num_heads, heads.head_dim), torch.nan, dtype=heads.dtype)
    rows = [s.query[s.context_len - s.query_len :] for s in sequences]
    query = torch.cat([*rows, poison]).to(device)
    with forced(implementation):
        output = paged_attention(
            query,
            caches[0].to(device),
            caches[1].to(device),
            metadata,
            heads.scale,
            heads.window,
        )
    return list(torch.split(output.cpu(), [*query_lens, padding]))


def _lay_out(
    heads: Heads, sequences: Sequence[Context], seed: int
) -> tuple[Tensor, list[list[int]]]:
    """Both caches `[2, num_blocks, num_kv_heads, block_size, head_dim]`, and the block tables."""
    counts = [-(-sequence.context_len // heads.block_size) for sequence in sequences]
    num_blocks = sum(counts) + 3
    shape = (2, num_blocks, heads.num_kv_heads, heads.block_size, heads.head_dim)
    caches = torch.full(shape, torch.nan, dtype=heads.dtype)
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    block_tables = []
    for sequence, count in zip(sequences, counts, strict=True):
        table = [free.pop() for _ in range(count)]
        block_tables.append(table)
        first_row = sequence.context_len - sequence.query_len
        first_seen = max(0, first_row - heads.window + 1) if heads.window else 0
        for position in range(first_seen, sequence.context_len):
            block = table[position // heads.block_size]
            offset = position % heads.block_size
            caches[0, block, :, offset] = sequence.key[position]
            caches[1, block, :, offset] = sequence.value[position]
    return caches, block_tables


def dense_attention(heads: Heads, sequence: Context) -> Tensor:
    """What the sequence must give, in float64, without a cache: `[query_len, ...]`."""
    group = heads.num_heads // heads.num_kv_heads
    key = sequence.key.double().repeat_interleave(group, dim=1)
    value = sequence.value.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", sequence.query.double(), key) * heads.scale
    seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
    if heads.window:
        seen = seen.triu(1 - heads.window)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    output = torch.einsum("hqk,khd->qhd", weights, value)
    return output[sequence.context_len - sequence.query_len :]
