"""The tables of the rotary embedding: cosine and sine of every position, for `kernels.rotary`.

Sources: Su et al., "RoFormer", 2021; the frequency factors of Llama 3.1 after Meta's reference
code, 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from native_engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """Both `[max_positions, head_dim / 2]` float32."""

    cos: Tensor
    sin: Tensor


def inverse_frequencies(theta: float, head_dim: int) -> list[float]:
    """`theta ** (-2i / head_dim)` for each pair of dimensions i."""
    return [float(theta ** (-index / head_dim)) for index in range(0, head_dim, 2)]


def llama3_factors(
    frequencies: list[float],
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_positions: int,
) -> tuple[float, ...]:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""

    def stretch(frequency: float) -> float:
        waves_in_context = original_max_positions * frequency / (2 * math.pi)
        if waves_in_context < low_freq_factor:
            return factor
        if waves_in_context > high_freq_factor:
            return 1.0
        kept = (waves_in_context - low_freq_factor) / (high_freq_factor - low_freq_factor)
        return 1 / (kept + (1 - kept) / factor)

    return tuple(stretch(frequency) for frequency in frequencies)


def rotary_tables(config: ModelConfig, *, max_positions: int, device: torch.device) -> RotaryTables:
    """Computed in float64: at position 8000 a float32 angle is off by up to 5e-4."""
    frequencies = torch.tensor(
        inverse_frequencies(config.rope_theta, config.head_dim), dtype=torch.float64
    )
    if config.rope_factors:
        frequencies /= torch.tensor(config.rope_factors, dtype=torch.float64)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)
    return RotaryTables(angles.cos().float().to(device), angles.sin().float().to(device))
