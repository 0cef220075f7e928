"""How model files say what their rotary embedding is, its scaling to longer contexts included.

Sources: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023; the
frequency factors of Llama 3.1 after Meta's reference code, 2024; ggml/docs/gguf.md (2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from native_engine.models.config import Rope
from native_engine.models.keys import Keys
from native_engine.models.rotary import inverse_frequencies
from native_engine.models.weights import Weights

DEFAULT_THETA = 10_000.0  # what the first Llama used before files said so
_ORIGINAL = "original_max_position_embeddings"
_UNUSED_BY_SOME = (_ORIGINAL, "finetuned")  # said beside scalings that do without
_GGUF_FACTORS = "rope_freqs.weight"
_GGUF_ORIGINAL = "rope.scaling.original_context_length"
_BETA_FAST, _BETA_SLOW = 32.0, 1.0  # YaRN's own, for Llama


def hf_rope(keys: Keys, head_dim: int) -> Rope:
    """`rope_parameters` holds base and scaling; `rope_scaling`, from older times, comes first.

    Raises:
        ModelFileError: a key is missing or wrong, or the scaling is not implemented.
    """
    if _ORIGINAL in keys:
        raise keys.error(_ORIGINAL, "is set; it is read inside rope_parameters only")
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.error("partial_rotary_factor", "is set: only whole heads are rotated")
    theta = keys.number("rope_theta", DEFAULT_THETA)
    section = _hf_section(keys)
    return Rope(theta=theta) if section is None else scaled_rope(section, theta, head_dim)


def hf_max_positions(keys: Keys, longest: int) -> int:
    """`longest`, which is `max_position_embeddings`, stretched: it is the length before a linear
    scaling. Some YaRN files have stretched it already, so there the longer one counts.
    """
    section = _hf_section(keys)
    kind = _kind(section) if section else "default"
    if section and kind == "linear":
        return int(longest * section.number("factor"))
    if section and kind == "yarn":
        return max(longest, int(section.integer(_ORIGINAL) * section.number("factor")))
    return longest


def scaled_rope(section: Keys, theta: float, head_dim: int) -> Rope:
    """From such a section; `theta` is the base if that names none.

    Raises:
        ModelFileError: a key is missing, wrong or unknown, or the scaling is not implemented.
    """
    theta = section.number("rope_theta", theta)
    if section.number("partial_rotary_factor", 1.0) != 1.0:
        raise section.error("partial_rotary_factor", "is set: only whole heads are rotated")
    rope = _SCALINGS[_kind(section)](section, theta, head_dim)
    section.check_all_read(harmless=_UNUSED_BY_SOME)
    return rope


def gguf_rope(keys: Keys, weights: Weights, head_dim: int) -> Rope:
    """Llama 3.1 files carry their factors as a tensor.

    Raises:
        ModelFileError: a key is missing or wrong, or the scaling is not implemented.
    """
    theta = keys.number("rope.freq_base", DEFAULT_THETA)
    kind = keys.text("rope.scaling.type", "none")
    if kind == "yarn":
        return _yarn_from_gguf(keys, theta, head_dim)
    if kind not in ("none", "linear"):
        raise keys.error("rope.scaling.type", f"is {kind!r}; implemented are none, linear and yarn")
    scale = keys.number("rope.scale_linear", 1.0)  # the older spelling
    if kind == "linear":
        scale = keys.number("rope.scaling.factor")
    factors = [1.0] * (head_dim // 2)
    if _GGUF_FACTORS in weights:
        factors = weights.take(_GGUF_FACTORS, (head_dim // 2,)).tolist()
    scaled = tuple(factor * scale for factor in factors)
    return Rope(theta=theta, factors=scaled if any(factor != 1.0 for factor in scaled) else ())


def gguf_max_positions(keys: Keys) -> int:
    """The longest context, stretched if the file says from which length."""
    longest = keys.integer("context_length")
    is_scaled = keys.text("rope.scaling.type", "none") != "none"
    if not is_scaled or _GGUF_ORIGINAL not in keys:
        return longest
    return max(longest, int(keys.integer(_GGUF_ORIGINAL) * keys.number("rope.scaling.factor")))


def _hf_section(keys: Keys) -> Keys | None:
    return keys.section("rope_scaling") or keys.section("rope_parameters")


def _kind(section: Keys) -> str:
    key = "rope_type" if "rope_type" in section else "type"
    kind = section.text(key, "default")
    if kind not in _SCALINGS:
        raise section.error(key, f"is {kind!r}; implemented are {', '.join(_SCALINGS)}")
    return kind


def _unscaled(section: Keys, theta: float, head_dim: int) -> Rope:
    return Rope(theta=theta)


def _dynamic(section: Keys, theta: float, head_dim: int) -> Rope:
    """The base grows only beyond `max_position_embeddings`, and no sequence here gets there: the
    keys of one prefix would then depend on the length of the sequence that computed them.
    """
    section.number("factor")
    return Rope(theta=theta)


def _linear(section: Keys, theta: float, head_dim: int) -> Rope:
    return Rope(theta=theta, factors=(section.number("factor"),) * (head_dim // 2))


def _llama3(section: Keys, theta: float, head_dim: int) -> Rope:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor = section.number("factor")
    low = section.number("low_freq_factor")
    high = section.number("high_freq_factor")
    original_max_positions = section.integer(_ORIGINAL)

    def stretch(frequency: float) -> float:
        waves_in_context = original_max_positions * frequency / (2 * math.pi)
        if waves_in_context < low:
            return factor
        if waves_in_context > high:
            return 1.0
        kept = (waves_in_context - low) / (high - low)
        return 1 / (kept + (1 - kept) / factor)

    frequencies = inverse_frequencies(theta, head_dim)
    return Rope(theta=theta, factors=tuple(stretch(frequency) for frequency in frequencies))


def _yarn(section: Keys, theta: float, head_dim: int) -> Rope:
    factor = section.number("factor")
    magnitude = section.number("attention_factor", _yarn_magnitude(factor))
    if "attention_factor" not in section and "mscale" in section and "mscale_all_dim" in section:
        magnitude = _yarn_magnitude(factor, section.number("mscale")) / _yarn_magnitude(
            factor, section.number("mscale_all_dim")
        )
    factors = _yarn_factors(
        theta,
        head_dim,
        factor=factor,
        original_max_positions=section.integer(_ORIGINAL),
        beta_fast=section.number("beta_fast", _BETA_FAST),
        beta_slow=section.number("beta_slow", _BETA_SLOW),
        whole_pairs=section.flag("truncate", True),
    )
    return Rope(theta=theta, factors=factors, magnitude=magnitude)


def _yarn_from_gguf(keys: Keys, theta: float, head_dim: int) -> Rope:
    """What `attn_factor` says multiplies what follows from the factor."""
    factor = keys.number("rope.scaling.factor")
    factors = _yarn_factors(
        theta,
        head_dim,
        factor=factor,
        original_max_positions=keys.integer(_GGUF_ORIGINAL),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", _BETA_FAST),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", _BETA_SLOW),
    )
    magnitude = keys.number("rope.scaling.attn_factor", 1.0) * _yarn_magnitude(factor)
    return Rope(theta=theta, factors=factors, magnitude=magnitude)


def _yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Longer contexts need larger scores, to be as sharp."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_factors(
    theta: float,
    head_dim: int,
    *,
    factor: float,
    original_max_positions: int,
    beta_fast: float,
    beta_slow: float,
    whole_pairs: bool = True,
) -> tuple[float, ...]:
    """Pairs that turn more than `beta_fast` times in the original context are kept, those of less
    than `beta_slow` turns stretched by `factor`, those between blended.
    """

    def pair_of(turns: float) -> float:
        return (
            head_dim
            * math.log(original_max_positions / (turns * 2 * math.pi))
            / (2 * math.log(theta))
        )

    first, last = pair_of(beta_fast), pair_of(beta_slow)
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = (last - first) or 0.001  # no blend at all

    def stretch(pair: int) -> float:
        kept = 1 - min(max((pair - first) / width, 0.0), 1.0)
        return 1 / (kept + (1 - kept) / factor)

    return tuple(stretch(pair) for pair in range(head_dim // 2))


_SCALINGS: Mapping[str, Callable[[Keys, float, int], Rope]] = {
    "default": _unscaled,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
