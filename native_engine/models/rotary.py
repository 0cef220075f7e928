"""The tables of the rotary embedding: cosine and sine of every position, for `kernels.rotary`.

Source: Su et al., "RoFormer", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from native_engine.models.config import ModelConfig, Rope


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Both `[max_positions, head_dim / 2]` float32."""

    cos: Tensor
    sin: Tensor


def inverse_frequencies(theta: float, head_dim: int) -> list[float]:
    """`theta ** (-2i / head_dim)` for each pair of dimensions i."""
    return [float(theta ** (-index / head_dim)) for index in range(0, head_dim, 2)]


def rotary_tables(
    config: ModelConfig, *, max_positions: int, device: torch.device
) -> tuple[RotaryTables, ...]:
    """Of each layer; those that turn alike share theirs."""
    ropes = [config.layer_rope(layer) for layer in range(config.num_layers)]
    tables = {rope: _tables(rope, config.head_dim, max_positions, device) for rope in set(ropes)}
    return tuple(tables[rope] for rope in ropes)


def _tables(rope: Rope, head_dim: int, max_positions: int, device: torch.device) -> RotaryTables:
    """Computed in float64: at position 8000 a float32 angle is off by up to 5e-4."""
    frequencies = torch.tensor(inverse_frequencies(rope.theta, head_dim), dtype=torch.float64)
    if rope.factors:
        frequencies /= torch.tensor(rope.factors, dtype=torch.float64)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)
    cos, sin = angles.cos() * rope.magnitude, angles.sin() * rope.magnitude
    return RotaryTables(cos.float().to(device), sin.float().to(device))
