from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.store_kv import store_kv
from tests.kernels.support import device_of, every_implementation, every_pair, normal

NUM_BLOCKS, BLOCK_SIZE = 3, 4


@every_implementation
@given(
    slots=st.lists(st.integers(0, NUM_BLOCKS * BLOCK_SIZE - 1), unique=True, max_size=6),
    skipped=st.sets(st.integers(0, 5)),
    shape=st.sampled_from([(1, 1), (3, 8), (2, 5)]),
)
@settings(deadline=None, max_examples=30)
def test_gathering_what_was_stored_gives_it_back_and_nothing_else_changes(
    implementation: Implementation, slots: list[int], skipped: set[int], shape: tuple[int, int]
) -> None:
    device = device_of(implementation)
    slot_mapping = [-1 if row in skipped else slot for row, slot in enumerate(slots)]
    key, value = normal(2, len(slots), *shape).to(device).unbind(0)
    caches = torch.full((2, NUM_BLOCKS, shape[0], BLOCK_SIZE, shape[1]), -7.0, device=device)
    with forced(implementation):
        store_kv(key, value, caches[0], caches[1], torch.tensor(slot_mapping, device=device).long())
    for rows, cache in ((key, caches[0]), (value, caches[1])):
        for row, slot in enumerate(slot_mapping):
            if slot >= 0:
                assert torch.equal(cache[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE], rows[row])
                cache[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = -7.0
    assert torch.all(caches == -7.0)


@every_pair
def test_copies_bit_for_bit_from_a_fused_projection(
    implementation: Implementation, dtype: torch.dtype
) -> None:
    device = device_of(implementation)
    fused = normal(3, 4 * 80).to(device, dtype)
    key, value = fused[:, :160].view(3, 2, 80), fused[:, 160:].view(3, 2, 80)
    caches = torch.zeros(2, 2, 2, 16, 80, dtype=dtype, device=device)
    with forced(implementation):
        store_kv(key, value, caches[0], caches[1], torch.tensor([31, 0, 16], device=device))
    assert torch.equal(caches[0, [1, 0, 1], :, [15, 0, 0]], key)
    assert torch.equal(caches[1, [1, 0, 1], :, [15, 0, 0]], value)


@pytest.mark.parametrize(
    ("cache", "complaint"),
    [
        (torch.zeros(2, 16, 2, 8).transpose(1, 2), "caches must be contiguous"),
        (torch.zeros(2, 2, 16, 8, dtype=torch.float16), "dtype of the keys"),
    ],
)
def test_triton_refuses_what_it_would_write_wrongly(cache: torch.Tensor, complaint: str) -> None:
    key = torch.zeros(1, 2, 8)
    with forced("triton"), pytest.raises(ValueError, match=complaint):
        store_kv(key, key, cache, cache, torch.zeros(1, dtype=torch.int64))
