"""Paged attention with a sliding window; outside of it the cache is NaN."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.choices import Implementation
from tests.kernels.paged import Heads, dense_attention, make_sequence, run
from tests.kernels.support import assert_near, every_implementation, every_pair

HEADS = Heads(num_heads=3, num_kv_heads=1)
invariant_implementations = pytest.mark.parametrize("implementation", ["torch", "triton"])


@every_pair
@pytest.mark.parametrize("window", [1, 7, 40, 41, 100])
def test_contexts_shorter_than_equal_to_and_longer_than_the_window(
    implementation: Implementation, dtype: torch.dtype, window: int
) -> None:
    heads = replace(HEADS, dtype=dtype, window=window)
    sequences = [
        make_sequence(heads, query_len=query_len, context_len=context_len, seed=seed)
        for seed, (query_len, context_len) in enumerate([(1, 1), (1, 40), (40, 40), (5, 90)])
    ]
    outputs = run(implementation, heads, sequences, padding=2)
    for sequence, output in zip(sequences, outputs, strict=False):
        assert_near(output, dense_attention(heads, sequence), dtype)
    assert torch.all(outputs[-1] == 0)


@every_implementation
@pytest.mark.parametrize("block_size", [1, 16, 48, 512])
@pytest.mark.parametrize("window", [30, 256, 300])
def test_contexts_of_several_tiles(
    implementation: Implementation, window: int, block_size: int
) -> None:
    heads = replace(HEADS, window=window, block_size=block_size)
    sequences = [
        make_sequence(heads, query_len=20, context_len=522),  # queries on both sides of 512
        make_sequence(heads, query_len=1, context_len=600, seed=1),
    ]
    outputs = run(implementation, heads, sequences)
    for sequence, output in zip(sequences, outputs, strict=False):
        assert_near(output, dense_attention(heads, sequence), torch.float32)


@every_implementation
def test_a_window_that_covers_the_context_changes_nothing(implementation: Implementation) -> None:
    sequence = make_sequence(HEADS, query_len=30, context_len=300)
    without, _ = run(implementation, HEADS, [sequence])
    covering, _ = run(implementation, replace(HEADS, window=300), [sequence])
    assert torch.equal(covering, without)


@every_implementation
def test_an_unrelated_sequence_changes_no_bit(implementation: Implementation) -> None:
    """E-BATCH-INVARIANCE"""
    heads = replace(HEADS, window=50)
    sequence = make_sequence(heads, query_len=2, context_len=300)
    mates = [make_sequence(heads, query_len=9, context_len=70, seed=1)] * 2
    alone, _ = run(implementation, heads, [sequence])
    among = run(implementation, heads, [mates[0], sequence, mates[1]], padding=5, seed=1)[1]
    assert torch.equal(alone, among)


@invariant_implementations
@pytest.mark.parametrize("window", [9, 64])
def test_a_prefill_in_chunks_equals_the_whole_bit_for_bit(
    implementation: Implementation, window: int
) -> None:
    heads = replace(HEADS, window=window)
    context_len = 100
    sequence = make_sequence(heads, query_len=context_len, context_len=context_len)
    whole, _ = run(implementation, heads, [sequence])
    for first, stop in ((0, 7), (20, 36), (62, 66), (30, 100), (98, 100)):
        output, _ = run(implementation, heads, [sequence.chunk(first, stop)], seed=first)
        assert torch.equal(output, whole[first:stop])


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 64), (4, 1, 128)])
@pytest.mark.parametrize("window", [20, 255, 256, 257, 400, 513])
def test_on_the_cpu_a_token_has_the_same_bits_however_it_was_computed(
    num_heads: int, num_kv_heads: int, head_dim: int, window: int
) -> None:
    """Whole, in chunks across the borders of blocks, tiles and windows, and one by one."""
    context_len = 1300
    heads = Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window=window)
    sequence = make_sequence(heads, query_len=context_len, context_len=context_len)
    whole, _ = run("torch", heads, [sequence])
    chunks = [(0, 100), (5, 8), (100, 300), (255, 256), (256, 257), (300, 530), (511, 770)]
    for first, stop in [*chunks, (768, 769), (900, 1024), (1023, 1024), (1030, 1300), (1299, 1300)]:
        output, _ = run("torch", heads, [sequence.chunk(first, stop)], seed=first)
        assert torch.equal(output, whole[first:stop])
