"""Qwen2 and Qwen2.5: Llama with a bias in Q, K and V."""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig
from native_engine.models.decoder_keys import decoder_from_gguf, decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights
from native_engine.models.window_keys import hf_windows

MAX_POSITIONS = 32_768  # transformers' `Qwen2Config` and `Qwen3Config`


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`. No key speaks of the bias: it is always there."""
    config = decoder_from_hf(keys, "qwen2", max_positions=MAX_POSITIONS)
    return replace(
        config, qkv_bias=True, output_bias=False, windows=qwen_windows(keys, config.num_layers)
    )


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    return decoder_from_gguf(keys, weights, "qwen2")


def qwen_windows(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """A window is used only if the file says so, and from layer `max_window_layers` on."""
    if not keys.flag("use_sliding_window", False) or keys.is_null("sliding_window"):
        return ()
    first = keys.integer("max_window_layers", 28)
    window = keys.integer("sliding_window", 4096)
    return hf_windows(keys, num_layers, window, lambda layer: layer >= first)
