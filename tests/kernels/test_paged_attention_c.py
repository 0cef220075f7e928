"""The sliding window of the C kernel, against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.cpu.paged_attention_c import paged_attention_c
from tests.kernels.support import assert_near, normal

CONTEXT_LEN, HEAD_DIM, SCALE = 130, 24, 0.2


def attend(query: Tensor, caches: Tensor, context_len: int, window: int) -> Tensor:
    """Queries of one sequence, whose blocks of 16 lie in order."""
    return paged_attention_c(
        query,
        caches[0],
        caches[1],
        torch.arange(9, dtype=torch.int32).unsqueeze(0),
        torch.tensor([0, len(query)], dtype=torch.int32),
        torch.tensor([context_len], dtype=torch.int32),
        num_rows=len(query),
        scale=SCALE,
        window=window,
    )


@pytest.mark.parametrize("window", [1, 5, 47, 48, 60, 130, 500])
def test_a_token_sees_its_window_alone_and_has_the_same_bits_in_any_chunk(window: int) -> None:
    query = normal(CONTEXT_LEN, 2, HEAD_DIM)
    caches = normal(2, 9, 1, 16, HEAD_DIM, seed=1)
    keys, values = caches.double().flatten(1, 3)[:, :CONTEXT_LEN]
    scores = torch.einsum("qhd,kd->hqk", query.double(), keys) * SCALE
    distance = torch.arange(CONTEXT_LEN)[:, None] - torch.arange(CONTEXT_LEN)
    seen = (distance >= 0) & (distance < window)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    whole = attend(query, caches, CONTEXT_LEN, window)
    assert_near(whole, torch.einsum("hqk,kd->qhd", weights, values), torch.float32)
    for first, stop in ((0, 1), (40, 70), (129, 130)):
        assert torch.equal(attend(query[first:stop], caches, stop, window), whole[first:stop])


@pytest.mark.parametrize("window", [0, 20, 60])
@pytest.mark.parametrize("stop", [8, 17, 48, 52, 97, 130])
def test_a_decode_has_the_same_bits_alone_and_with_drafts_behind_it(window: int, stop: int) -> None:
    """Up to 8 rows of one sequence, across the borders of blocks and tiles; what a rejected draft
    left in the slots after them is not read.
    """
    query = normal(CONTEXT_LEN, 2, HEAD_DIM)
    caches = normal(2, 9, 1, 16, HEAD_DIM, seed=1)
    alone = [attend(query[p : p + 1], caches, p + 1, window) for p in range(stop)]
    for num_rows in range(2, 9):
        rows = slice(stop - num_rows, stop)
        assert torch.equal(attend(query[rows], caches, stop, window), torch.cat(alone[rows]))
    caches.flatten(1, 3)[:, stop:] = float("nan")
    assert torch.equal(attend(query[stop - 1 : stop], caches, stop, window), alone[-1])
