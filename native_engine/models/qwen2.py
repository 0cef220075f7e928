"""Qwen2 and Qwen2.5: Llama with a bias in Q, K and V."""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig
from native_engine.models.decoder_keys import decoder_from_gguf, decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights

MAX_POSITIONS = 32_768  # transformers' `Qwen2Config` and `Qwen3Config`


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`. No key speaks of the bias: it is always there."""
    config = decoder_from_hf(keys, "qwen2", max_positions=MAX_POSITIONS)
    return replace(config, qkv_bias=True, output_bias=False)


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    return decoder_from_gguf(keys, weights, "qwen2")
