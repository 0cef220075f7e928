"""How model files say what their rotary embedding is, its scaling to longer contexts included.

Sources: the frequency factors of Llama 3.1 after Meta's reference code, 2024.
"""

from __future__ import annotations

import math

from native_engine.models.config import Rope
from native_engine.models.keys import Keys
from native_engine.models.rotary import inverse_frequencies
from native_engine.models.weights import Weights

DEFAULT_THETA = 10_000.0  # what the first Llama used before files said so
_GGUF_FACTORS = "rope_freqs.weight"


def hf_rope(keys: Keys, head_dim: int) -> Rope:
    """`rope_parameters` holds base and scaling, in older files `rope_scaling` the latter.

    Raises:
        ModelFileError: a key is missing or wrong, or the scaling is not implemented.
    """
    theta = keys.number("rope_theta", DEFAULT_THETA)
    section = keys.section("rope_parameters") or keys.section("rope_scaling")
    return Rope(theta=theta) if section is None else scaled_rope(section, theta, head_dim)


def scaled_rope(section: Keys, theta: float, head_dim: int) -> Rope:
    """From such a section; `theta` is the base if that names none.

    Raises:
        ModelFileError: a key is missing or wrong, or the scaling is not implemented.
    """
    theta = section.number("rope_theta", theta)
    if section.number("partial_rotary_factor", 1.0) != 1.0:
        raise section.error("partial_rotary_factor", "is set: only whole heads are rotated")
    kind_key = "rope_type" if "rope_type" in section else "type"
    kind = section.text(kind_key, "default")
    if kind == "default":
        return Rope(theta=theta)
    if kind == "linear":
        return Rope(theta=theta, factors=(section.number("factor"),) * (head_dim // 2))
    if kind == "llama3":
        return Rope(theta=theta, factors=_llama3_factors(section, theta, head_dim))
    raise section.error(kind_key, f"is {kind!r}; implemented are default, linear and llama3")


def gguf_rope(keys: Keys, weights: Weights, head_dim: int) -> Rope:
    """Llama 3.1 files carry their factors as a tensor.

    Raises:
        ModelFileError: a key is missing or wrong, or the scaling is not implemented.
    """
    theta = keys.number("rope.freq_base", DEFAULT_THETA)
    kind = keys.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise keys.error("rope.scaling.type", f"is {kind!r}; implemented are none and linear")
    scale = keys.number("rope.scale_linear", 1.0)  # the older spelling
    if kind == "linear":
        scale = keys.number("rope.scaling.factor")
    factors = [1.0] * (head_dim // 2)
    if _GGUF_FACTORS in weights:
        factors = weights.take(_GGUF_FACTORS, (head_dim // 2,)).tolist()
    scaled = tuple(factor * scale for factor in factors)
    return Rope(theta=theta, factors=scaled if any(factor != 1.0 for factor in scaled) else ())


def _llama3_factors(section: Keys, theta: float, head_dim: int) -> tuple[float, ...]:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor = section.number("factor")
    low = section.number("low_freq_factor")
    high = section.number("high_freq_factor")
    original_max_positions = section.integer("original_max_position_embeddings")

    def stretch(frequency: float) -> float:
        waves_in_context = original_max_positions * frequency / (2 * math.pi)
        if waves_in_context < low:
            return factor
        if waves_in_context > high:
            return 1.0
        kept = (waves_in_context - low) / (high - low)
        return 1 / (kept + (1 - kept) / factor)

    return tuple(stretch(frequency) for frequency in inverse_frequencies(theta, head_dim))
