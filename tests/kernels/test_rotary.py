from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.rotary import apply_rotary, apply_rotary_reference
from tests.kernels.support import assert_near, device_of, every_implementation, every_pair, normal


def tables(max_positions: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, rotary_dim, 2) / rotary_dim)
    angles = torch.arange(max_positions).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


@every_pair
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rotary_dim"),
    [(9, 3, 64, 64), (3, 1, 80, 32), (1, 1, 6, 6)],
)
def test_agrees_with_the_formula_in_float64(
    implementation: Implementation,
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
) -> None:
    device = device_of(implementation)
    query = normal(4, num_heads, head_dim).to(device, dtype)
    key = normal(4, num_kv_heads, head_dim, seed=1).to(device, dtype)
    cos, sin = tables(50, rotary_dim)
    positions = torch.tensor([7, 0, 49, 7])
    expected = query.cpu().double(), key.cpu().double()
    apply_rotary_reference(*expected, cos, sin, positions)
    with forced(implementation):
        apply_rotary(query, key, cos.to(device), sin.to(device), positions.to(device))
    assert_near(query, expected[0], dtype)
    assert_near(key, expected[1], dtype)


def test_turns_a_pair_by_its_angle_and_leaves_the_rest_of_the_head() -> None:
    cos, sin = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])  # position 1: 90 degrees
    query = torch.tensor([[[2.0, 3.0, 5.0]]])
    key = query.clone()
    apply_rotary(query, key, cos, sin, torch.tensor([1]))
    assert query.tolist() == key.tolist() == [[[-3.0, 2.0, 5.0]]]


@every_implementation
def test_works_in_place_inside_a_fused_projection(implementation: Implementation) -> None:
    device = device_of(implementation)
    fused = normal(5, (4 + 2 + 2) * 16).to(device)
    untouched = fused[:, 96:].clone()
    query, key = fused[:, :64].view(5, 4, 16), fused[:, 64:96].view(5, 2, 16)
    expected = query.cpu().double(), key.cpu().double()
    cos, sin = tables(9, 16)
    positions = torch.tensor([0, 3, 8, 1, 2])
    apply_rotary_reference(*expected, cos, sin, positions)
    with forced(implementation):
        apply_rotary(query, key, cos.to(device), sin.to(device), positions.to(device))
    assert_near(query, expected[0], torch.float32)
    assert_near(key, expected[1], torch.float32)
    assert torch.equal(fused[:, 96:], untouched)


@every_implementation
def test_an_empty_step_is_no_error(implementation: Implementation) -> None:
    device = device_of(implementation)
    cos, sin = (table.to(device) for table in tables(4, 16))
    heads = torch.empty(0, 2, 16, device=device)
    with forced(implementation):
        apply_rotary(heads, heads, cos, sin, torch.empty(0, dtype=torch.int64, device=device))
    assert heads.shape == (0, 2, 16)


def test_triton_refuses_a_rotary_dim_larger_than_the_head() -> None:
    cos, sin = tables(4, 32)
    heads = torch.zeros(1, 2, 16)
    with forced("triton"), pytest.raises(ValueError, match="rotary_dim must not exceed head_dim"):
        apply_rotary(heads, heads, cos, sin, torch.zeros(1, dtype=torch.int64))
