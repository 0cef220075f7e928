from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from kernels.choices import Implementation
from kernels.copy_blocks import CHUNK, copy_blocks
from kernels.dispatch import forced
from tests.kernels.support import but_c, device_of, every_dtype, normal

NUM_BLOCKS = 5
BLOCKS = st.integers(0, NUM_BLOCKS - 1)


def caches_of(*block_shape: int) -> torch.Tensor:
    """Keys and values, no two elements alike in practice."""
    return normal(2, NUM_BLOCKS, *block_shape)


@but_c
@given(
    copies=st.lists(st.tuples(BLOCKS, BLOCKS), max_size=6),
    shape=st.sampled_from([(1, 4, 1), (3, 4, 8), (2, 5, 5)]),
)
@settings(deadline=None, max_examples=40)
def test_any_copies_are_made_one_after_the_other(
    implementation: Implementation, copies: list[tuple[int, int]], shape: tuple[int, int, int]
) -> None:
    """Chains, cycles, a source that is overwritten, a target written twice, a copy onto itself."""
    expected = caches_of(*shape)
    device = device_of(implementation)
    caches = expected.clone().to(device)
    contents = list(range(NUM_BLOCKS))  # which block each one's contents were at first
    for source, target in copies:
        contents[target] = contents[source]
    with forced(implementation):
        copy_blocks(
            caches[0], caches[1], torch.tensor(copies, dtype=torch.int64, device=device).view(-1, 2)
        )
    assert torch.equal(caches.cpu(), expected[:, contents])


@every_dtype
@but_c
def test_copies_bit_for_bit_across_the_chunks_of_a_block(
    implementation: Implementation, dtype: torch.dtype
) -> None:
    device = device_of(implementation)
    shape = (3, 16, 50)
    assert 2 * CHUNK < torch.Size(shape).numel() < 3 * CHUNK
    before = caches_of(*shape).to(device, dtype)
    caches = before.clone()
    with forced(implementation):
        copy_blocks(caches[0], caches[1], torch.tensor([[4, 1], [1, 0]], device=device))
    assert torch.equal(caches, before[:, [4, 4, 2, 3, 4]])


@but_c
def test_leaves_the_memory_around_the_caches_alone(implementation: Implementation) -> None:
    """The caches are the middle of a larger tensor whose ends are NaN."""
    device = device_of(implementation)
    arena = torch.full((2, NUM_BLOCKS + 2, 1, 4, 3), torch.nan, device=device)
    arena[:, 1:-1] = caches_of(1, 4, 3).to(device)
    with forced(implementation):
        copy_blocks(arena[0, 1:-1], arena[1, 1:-1], torch.tensor([[0, 4], [3, 0]], device=device))
    assert torch.isnan(arena[:, [0, -1]]).all()
    assert not torch.isnan(arena[:, 1:-1]).any()


def test_triton_refuses_what_it_would_copy_wrongly() -> None:
    cache = torch.zeros(2, 16, 2, 8)
    with forced("triton"), pytest.raises(ValueError, match="caches must be contiguous"):
        copy_blocks(cache, cache.transpose(1, 2), torch.zeros(1, 2, dtype=torch.int64))
    with forced("triton"), pytest.raises(ValueError, match="copies must be contiguous"):
        copy_blocks(cache, cache, torch.zeros(2, 2, dtype=torch.int64).t())
