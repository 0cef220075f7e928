"""What the files of all our architectures say alike: sizes, biases, ties, the rotary embedding.

An architecture's module starts from one of these configurations and replaces what it has of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping

from native_engine.models.config import Activation, ModelConfig, Rope
from native_engine.models.keys import Keys
from native_engine.models.rope_keys import (
    gguf_max_positions,
    gguf_rope,
    hf_max_positions,
    hf_rope,
)
from native_engine.models.weights import Weights
from native_engine.models.window_keys import gguf_windows

_NAMES: Mapping[Activation, str] = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}


def decoder_from_hf(
    keys: Keys,
    architecture: str,
    *,
    head_dim: int = 0,
    max_positions: int = 2048,
    activation: Activation = "silu",
    rope: Rope | None = None,
) -> ModelConfig:
    """From config.json. Beyond those given, defaults are those of transformers' `LlamaConfig`.

    head_dim: if the file does not say it; 0: the heads' share of the hidden size.
    rope: of an architecture with keys of its own for it, whose longest context is as the file says.

    Raises:
        ModelFileError: a key is missing or wrong, or says something not implemented.
    """
    for key in ("hidden_act", "hidden_activation"):
        if (name := keys.text(key, _NAMES[activation])) != _NAMES[activation]:
            raise keys.error(key, f"is {name!r}; only {_NAMES[activation]!r} is implemented")
    if "quantization_config" in keys:
        raise keys.error(
            "quantization_config", "is set: quantised folders are not read; use a GGUF file"
        )
    hidden_size = keys.integer("hidden_size")
    num_heads = keys.integer("num_attention_heads")
    size = _head_dim(keys, "head_dim", hidden_size, num_heads, head_dim)
    attention_bias = keys.flag("attention_bias", False)
    max_positions = keys.integer("max_position_embeddings", max_positions)
    if rope is None:
        rope, max_positions = hf_rope(keys, size), hf_max_positions(keys, max_positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, "num_key_value_heads", num_heads),
        head_dim=size,
        max_positions=max_positions,
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=rope,
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", False),
        activation=activation,
    )


def decoder_from_gguf(
    keys: Keys, weights: Weights, architecture: str, *, window_pattern: int = 0
) -> ModelConfig:
    """From the architecture's keys of a GGUF file, which says by presence which tensors are tied
    and which have a bias.

    window_pattern: if the file does not say it, every so many-th layer has no window; 0: all have.

    Raises:
        ModelFileError: a key is missing or wrong, or says something not implemented.
    """
    if "expert_count" in keys:
        raise keys.error("expert_count", "is set: mixtures of experts are not implemented")
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    head_dim = _head_dim(keys, "attention.key_length", hidden_size, num_heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if (size := keys.integer(key, head_dim)) != head_dim:
            raise keys.error(key, f"is {size}; only the head size, {head_dim}, is implemented")
    num_layers = keys.integer("block_count")
    num_rows = next(iter(weights.shape("model.embed_tokens.weight")), 1)
    return ModelConfig(
        architecture=architecture,
        vocab_size=keys.integer("vocab_size", num_rows),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=gguf_max_positions(keys),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=gguf_rope(keys, weights, head_dim),
        tie_word_embeddings="lm_head.weight" not in weights,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in weights,
        output_bias="model.layers.0.self_attn.o_proj.bias" in weights,
        mlp_bias="model.layers.0.mlp.up_proj.bias" in weights,
        windows=gguf_windows(keys, num_layers, default_pattern=window_pattern),
    )


def _head_dim(keys: Keys, key: str, hidden_size: int, num_heads: int, default: int = 0) -> int:
    if key not in keys and not default and hidden_size % num_heads:
        raise keys.error(key, f"is missing, and {num_heads} heads do not divide {hidden_size}")
    head_dim = keys.integer(key, default or hidden_size // num_heads)
    if head_dim % 2:
        raise keys.error(key, f"is {head_dim}; it must be even")
    return head_dim


def _num_kv_heads(keys: Keys, key: str, num_heads: int) -> int:
    num_kv_heads = keys.integer(key, num_heads)
    if num_heads % num_kv_heads:
        raise keys.error(key, f"is {num_kv_heads}; it must divide the {num_heads} heads")
    return num_kv_heads
