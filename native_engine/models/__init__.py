"""The models: one decoder driven by `ModelConfig`, and one small module per architecture.

An architecture's module says how its configuration is read from either kind of model file. It is
found here by the name those files give it and imported only then. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

from native_engine.models.config import ModelConfig
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights

# The name in a model's files (`architectures` in config.json, `general.architecture` in GGUF)
# -> module.
_MODULES: Mapping[str, str] = {
    "LlamaForCausalLM": "native_engine.models.llama",
    "llama": "native_engine.models.llama",
    "MistralForCausalLM": "native_engine.models.mistral",
    "Gemma3ForCausalLM": "native_engine.models.gemma3",
    "gemma3": "native_engine.models.gemma3",
    "Qwen2ForCausalLM": "native_engine.models.qwen2",
    "qwen2": "native_engine.models.qwen2",
    "Qwen3ForCausalLM": "native_engine.models.qwen3",
    "qwen3": "native_engine.models.qwen3",
}


class Architecture(Protocol):
    """What an architecture's module offers. Both functions raise `ModelFileError`."""

    def config_from_hf(self, keys: Keys, weights: Weights) -> ModelConfig:
        """From the keys of a config.json."""
        ...

    def config_from_gguf(self, keys: Keys, weights: Weights) -> ModelConfig:
        """From the architecture's own keys of a GGUF file, their prefix taken off."""
        ...


def known_architectures() -> tuple[str, ...]:
    """The names `find_architecture` knows."""
    return tuple(_MODULES)


def find_architecture(name: str) -> Architecture | None:
    """The architecture that model files call `name`, or None."""
    module = _MODULES.get(name)
    return cast(Architecture, import_module(module)) if module else None
