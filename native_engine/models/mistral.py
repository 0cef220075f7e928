"""Mistral: Llama, in its first version with a sliding window in every layer.

In GGUF it goes by the name of Llama.
"""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig
from native_engine.models.decoder_keys import decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.llama import config_from_gguf
from native_engine.models.weights import Weights
from native_engine.models.window_keys import hf_windows

__all__ = ["config_from_gguf", "config_from_hf"]

_DEFAULT_WINDOW = 4096  # transformers' `MistralConfig`; files of models without say null


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    config = decoder_from_hf(keys, "mistral", max_positions=131_072)
    if keys.is_null("sliding_window"):
        return config
    window = keys.integer("sliding_window", _DEFAULT_WINDOW)
    return replace(config, windows=hf_windows(keys, config.num_layers, window, lambda layer: True))
