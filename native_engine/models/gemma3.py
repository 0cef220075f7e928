"""Gemma 3, its text models: windows in five layers of six, four norms a layer, GeGLU.

Layers with a window turn queries and keys at a base of their own. Norm weights lie around 0 in
config.json's checkpoints; converters to GGUF have added the 1.

Source: Gemma Team, "Gemma 3 Technical Report", 2025; transformers' `Gemma3TextConfig` for defaults.
"""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig, Rope
from native_engine.models.decoder_keys import decoder_from_gguf, decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.rope_keys import scaled_rope
from native_engine.models.weights import Weights
from native_engine.models.window_keys import all_but_every, hf_windows

_HEAD_DIM = 256
_WINDOW = 4096
_PATTERN = 6  # every sixth layer sees everything
_MAX_POSITIONS = 131_072
_GLOBAL_THETA = 1e6
_LOCAL_THETA = 1e4
_LAYERS_27B = 62


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if key in keys:
            raise keys.error(key, "is set; it is not implemented")
    if keys.flag("use_bidirectional_attention", False):
        raise keys.error("use_bidirectional_attention", "is set: only causal models are read")
    global_rope, local_rope = _hf_ropes(keys, keys.integer("head_dim", _HEAD_DIM))
    config = decoder_from_hf(
        keys,
        "gemma3",
        head_dim=_HEAD_DIM,
        max_positions=_MAX_POSITIONS,
        activation="gelu_tanh",
        rope=global_rope,
    )
    every = keys.integer("sliding_window_pattern", _PATTERN)
    window = keys.integer("sliding_window", _WINDOW)
    return replace(
        _gemma3(config),
        window_rope=local_rope,
        windows=hf_windows(keys, config.num_layers, window, all_but_every(every)),
        norm_offset=1.0,
        attention_scale=keys.number("query_pre_attn_scalar", 256.0) ** -0.5,
        tie_word_embeddings=keys.flag("tie_word_embeddings", True),
    )


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`. The scale of attention follows from the model: 27B has its own."""
    keys.integer("attention.sliding_window")  # others do without
    config = _gemma3(decoder_from_gguf(keys, weights, "gemma3", window_pattern=_PATTERN))
    is_27b = config.num_layers == _LAYERS_27B
    scalar = config.hidden_size / config.num_heads if is_27b else config.head_dim
    return replace(
        config,
        rope=replace(config.rope, theta=keys.number("rope.freq_base", _GLOBAL_THETA)),
        window_rope=Rope(theta=keys.number("rope.freq_base_swa", _LOCAL_THETA)),
        attention_scale=scalar**-0.5,
    )


def _gemma3(config: ModelConfig) -> ModelConfig:
    """What either file means by being of this architecture."""
    return replace(
        config,
        qk_norm=True,
        branch_norms=True,
        activation="gelu_tanh",
        embedding_scale=config.hidden_size**0.5,
    )


def _hf_ropes(keys: Keys, head_dim: int) -> tuple[Rope, Rope]:
    """Of the layers that see everything, and of those with a window."""
    global_theta = keys.number("rope_theta", _GLOBAL_THETA)
    local_theta = keys.number("rope_local_base_freq", _LOCAL_THETA)
    both = keys.section("rope_parameters")
    global_section = keys.section("rope_scaling") or (both and both.section("full_attention"))
    local_section = both.section("sliding_attention") if both else None
    return (
        _rope(global_section, global_theta, head_dim),
        _rope(local_section, local_theta, head_dim),
    )


def _rope(section: Keys | None, theta: float, head_dim: int) -> Rope:
    return scaled_rope(section, theta, head_dim) if section else Rope(theta=theta)
