from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.paged_attention import AttentionMetadata, paged_attention
from tests.kernels.paged import Heads, dense_attention, make_sequence, run
from tests.kernels.support import assert_near, every_implementation, every_pair, normal

invariant_implementations = pytest.mark.parametrize("implementation", ["torch", "c", "triton"])

SHAPES = [
    Heads(num_heads=2, num_kv_heads=2, head_dim=64, block_size=16),
    Heads(num_heads=3, num_kv_heads=1, head_dim=80, block_size=32),
    Heads(num_heads=4, num_kv_heads=1, head_dim=128, block_size=16),
]
every_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda s: f"{s.num_heads}-{s.num_kv_heads}-{s.head_dim}-{s.block_size}"
)


@every_pair
@every_shape
@pytest.mark.parametrize("step", ["decode", "mixed"])
def test_agrees_with_dense_attention_in_float64(
    implementation: Implementation, dtype: torch.dtype, shape: Heads, step: str
) -> None:
    heads = replace(shape, dtype=dtype)
    block = heads.block_size
    context_lens = [1, block - 1, block, block + 1, 3 * block + 2]
    query_lens = [1] * 5 if step == "decode" else [1, block - 1, 1, 5, 2 * block]
    sequences = [
        make_sequence(heads, query_len=query_len, context_len=context_len, seed=seed)
        for seed, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True))
    ]
    outputs = run(implementation, heads, sequences)
    for sequence, output in zip(sequences, outputs, strict=False):
        assert_near(output, dense_attention(heads, sequence), dtype)


@every_implementation
def test_a_context_of_several_tiles_agrees_with_dense_attention(
    implementation: Implementation,
) -> None:
    heads = Heads(num_heads=3, num_kv_heads=1)
    sequences = [
        make_sequence(heads, query_len=20, context_len=520),  # queries on both sides of 512
        make_sequence(heads, query_len=1, context_len=257, seed=1),
    ]
    outputs = run(implementation, heads, sequences)
    for sequence, output in zip(sequences, outputs, strict=False):
        assert_near(output, dense_attention(heads, sequence), torch.float32)


@every_implementation
@pytest.mark.parametrize("block_size", [1, 8, 48, 512])
def test_any_block_size_will_do(implementation: Implementation, block_size: int) -> None:
    heads = Heads(num_heads=3, num_kv_heads=1, block_size=block_size)
    sequence = make_sequence(heads, query_len=50, context_len=300)
    output, _ = run(implementation, heads, [sequence])
    assert_near(output, dense_attention(heads, sequence), torch.float32)


@every_implementation
def test_padding_sequences_give_no_rows_and_padding_rows_give_zeros(
    implementation: Implementation,
) -> None:
    heads = Heads()
    sequences = [
        make_sequence(heads, query_len=0, context_len=0),
        make_sequence(heads, query_len=2, context_len=18),
        make_sequence(heads, query_len=0, context_len=5),
    ]
    outputs = run(implementation, heads, sequences, padding=3)
    assert [len(output) for output in outputs] == [0, 2, 0, 3]
    assert_near(outputs[1], dense_attention(heads, sequences[1]), torch.float32)
    assert torch.all(outputs[3] == 0)


@every_implementation
@pytest.mark.parametrize("padding", [0, 2])
def test_a_step_without_sequences_gives_only_padding(
    implementation: Implementation, padding: int
) -> None:
    (output,) = run(implementation, Heads(), [], padding=padding)
    assert output.shape == (padding, 6, 64)
    assert torch.all(output == 0)


@every_implementation
def test_permuting_sequences_permutes_outputs_bit_for_bit(implementation: Implementation) -> None:
    heads = Heads()
    sequences = [
        make_sequence(heads, query_len=query_len, context_len=context_len, seed=context_len)
        for query_len, context_len in ((1, 17), (3, 33), (2, 2))
    ]
    outputs = run(implementation, heads, sequences)[:3]
    order = [2, 0, 1]
    permuted = run(implementation, heads, [sequences[i] for i in order], seed=1)[:3]
    for place, index in enumerate(order):
        assert torch.equal(permuted[place], outputs[index])


@every_implementation
def test_an_unrelated_sequence_changes_no_bit(implementation: Implementation) -> None:
    """E-BATCH-INVARIANCE"""
    heads = Heads()
    sequence = make_sequence(heads, query_len=2, context_len=40)
    mates = [make_sequence(heads, query_len=9, context_len=70, seed=1)] * 2
    alone, _ = run(implementation, heads, [sequence])
    among = run(implementation, heads, [mates[0], sequence, mates[1]], padding=5, seed=1)[1]
    assert torch.equal(alone, among)


@invariant_implementations
@pytest.mark.parametrize("chunk", [7, 16, 60])
def test_a_prefill_in_chunks_equals_the_whole_bit_for_bit(
    implementation: Implementation, chunk: int
) -> None:
    heads = Heads(num_heads=3, num_kv_heads=1)
    context_len = 75
    sequence = make_sequence(heads, query_len=context_len, context_len=context_len)
    whole, _ = run(implementation, heads, [sequence])
    for first in range(0, context_len, chunk):
        stop = min(first + chunk, context_len)
        output, _ = run(implementation, heads, [sequence.chunk(first, stop)], seed=first)
        assert torch.equal(output, whole[first:stop])


@pytest.mark.parametrize("implementation", ["torch", "c"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (9, 3), (8, 2)])
def test_on_the_cpu_a_token_has_the_same_bits_however_it_was_computed(
    implementation: Implementation, head_dim: int, num_heads: int, num_kv_heads: int
) -> None:
    """Whole, in chunks across the borders of blocks and tiles, and one by one as in decoding."""
    context_len = 530
    heads = Heads(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    sequence = make_sequence(heads, query_len=context_len, context_len=context_len)
    whole, _ = run(implementation, heads, [sequence])
    for first, stop in ((0, 1), (0, 100), (5, 8), (100, 300), (255, 256), (256, 257), (300, 530)):
        output, _ = run(implementation, heads, [sequence.chunk(first, stop)], seed=first)
        assert torch.equal(output, whole[first:stop])


@every_implementation
def test_takes_queries_that_are_a_slice_of_a_fused_projection(
    implementation: Implementation,
) -> None:
    fused = normal(4, 10 * 64)
    query = fused[:, : 6 * 64].view(4, 6, 64)
    caches = normal(2, 2, 2, 16, 64, seed=1)
    metadata = AttentionMetadata.build(
        query_lens=[4], context_lens=[20], block_tables=[[1, 0]], device=torch.device("cpu")
    )
    with forced(implementation):
        sliced = paged_attention(query, caches[0], caches[1], metadata, 0.125)
        copied = paged_attention(query.contiguous(), caches[0], caches[1], metadata, 0.125)
    assert torch.equal(sliced, copied)


@invariant_implementations
def test_refuses_a_cache_that_is_not_contiguous(implementation: Implementation) -> None:
    cache = torch.zeros(2, 16, 2, 64).transpose(1, 2)
    metadata = AttentionMetadata.build(
        query_lens=[1], context_lens=[1], block_tables=[[0]], device=torch.device("cpu")
    )
    with forced(implementation), pytest.raises(ValueError, match="caches must be contiguous"):
        paged_attention(torch.zeros(1, 4, 64), cache, cache, metadata, 0.125)


def test_on_the_cpu_a_decode_has_the_same_bits_alone_and_with_drafts_behind_it() -> None:
    heads = Heads(num_heads=9, num_kv_heads=3, head_dim=64)
    sequence = make_sequence(heads, query_len=600, context_len=600)
    for stop in (9, 256, 259, 513, 600):
        alone = [run("torch", heads, [sequence.chunk(p, p + 1)])[0] for p in range(stop - 8, stop)]
        for num_rows in range(2, 9):
            together, _ = run(
                "torch", heads, [sequence.chunk(stop - num_rows, stop)], seed=num_rows
            )
            assert torch.equal(together, torch.cat(alone[-num_rows:]))


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        (torch.zeros(1, 3, 64), "3 query heads do not share 2 kv heads evenly"),
        (torch.zeros(1, 64, 4).transpose(1, 2), "side by side"),
        (torch.zeros(1, 4, 64, dtype=torch.float16), "must agree"),
    ],
)
def test_triton_refuses_what_it_would_read_wrongly(query: torch.Tensor, complaint: str) -> None:
    cache = torch.zeros(1, 2, 16, 64)
    metadata = AttentionMetadata.build(
        query_lens=[1], context_lens=[1], block_tables=[[0]], device=torch.device("cpu")
    )
    with forced("triton"), pytest.raises(ValueError, match=complaint):
        paged_attention(query, cache, cache, metadata, 0.125)


def test_metadata_is_built_from_ragged_block_tables() -> None:
    metadata = AttentionMetadata.build(
        query_lens=[1, 3],
        context_lens=[17, 3],
        block_tables=[[4, 2], [7]],
        device=torch.device("cpu"),
    )
    assert metadata.cu_seqlens_q.tolist() == [0, 1, 4]
    assert metadata.block_tables.tolist() == [[4, 2], [7, 0]]
    assert metadata.context_lens.tolist() == list(metadata.context_lens_host) == [17, 3]
    assert {t.dtype for t in (metadata.cu_seqlens_q, metadata.context_lens)} == {torch.int32}
