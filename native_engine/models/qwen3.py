"""Qwen3, its dense models: heads of a size of their own, queries and keys normed."""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig
from native_engine.models.decoder_keys import decoder_from_gguf, decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.qwen2 import MAX_POSITIONS, qwen_windows
from native_engine.models.weights import Weights


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    config = decoder_from_hf(keys, "qwen3", head_dim=128, max_positions=MAX_POSITIONS)
    return replace(config, qk_norm=True, windows=qwen_windows(keys, config.num_layers))


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    return replace(decoder_from_gguf(keys, weights, "qwen3"), qk_norm=True)
