"""The Llama family: everything it needs, the shared decoder does by default.

Its GGUF files, and those of Mistral, which go by the same name there, hold the rows of Q and K
interleaved.
"""

from __future__ import annotations

from dataclasses import replace

from native_engine.models.config import ModelConfig
from native_engine.models.decoder_keys import decoder_from_gguf, decoder_from_hf
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    return decoder_from_hf(keys, "llama")


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`."""
    return replace(decoder_from_gguf(keys, weights, "llama"), rope_interleaved=True)
