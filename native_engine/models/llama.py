"""The Llama family: how its configuration is read from config.json and from GGUF.

Everything it needs, the shared decoder does by default.
"""

from __future__ import annotations

from native_engine.models.config import ModelConfig
from native_engine.models.keys import Keys
from native_engine.models.rotary import inverse_frequencies, llama3_factors
from native_engine.models.weights import Weights

DEFAULT_ROPE_THETA = 10_000.0  # what the first Llama used before files said so
GGUF_ROPE_FACTORS = "rope_freqs.weight"


def config_from_hf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`. Defaults are those of transformers' `LlamaConfig`."""
    if (activation := keys.text("hidden_act", "silu")) != "silu":
        raise keys.error("hidden_act", f"is {activation!r}; only 'silu' is implemented")
    if "quantization_config" in keys:
        raise keys.error(
            "quantization_config", "is set: quantised folders are not read; use a GGUF file"
        )
    hidden_size = keys.integer("hidden_size")
    num_heads = keys.integer("num_attention_heads")
    head_dim = _head_dim(keys, "head_dim", hidden_size, num_heads)
    attention_bias = keys.flag("attention_bias", False)
    theta, factors = _hf_rope(keys, head_dim)
    return ModelConfig(
        architecture="llama",
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_positions=keys.integer("max_position_embeddings", 2048),
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_factors=factors,
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", False),
    )


def config_from_gguf(keys: Keys, weights: Weights) -> ModelConfig:
    """See `Architecture`. GGUF says by presence which tensors are tied and which have a bias."""
    if "expert_count" in keys:
        raise keys.error("expert_count", "is set: mixtures of experts are not implemented")
    hidden_size = keys.integer("embedding_length")
    num_heads = keys.integer("attention.head_count")
    head_dim = _head_dim(keys, "attention.key_length", hidden_size, num_heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if (size := keys.integer(key, head_dim)) != head_dim:
            raise keys.error(key, f"is {size}; only the head size, {head_dim}, is implemented")
    num_rows = next(iter(weights.shape("model.embed_tokens.weight")), 1)
    return ModelConfig(
        architecture="llama",
        vocab_size=keys.integer("vocab_size", num_rows),
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=keys.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, "attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_positions=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", DEFAULT_ROPE_THETA),
        rope_factors=_gguf_rope_factors(keys, weights, head_dim),
        rope_interleaved=True,
        tie_word_embeddings="lm_head.weight" not in weights,
        qkv_bias="model.layers.0.self_attn.q_proj.bias" in weights,
        output_bias="model.layers.0.self_attn.o_proj.bias" in weights,
        mlp_bias="model.layers.0.mlp.up_proj.bias" in weights,
    )


def _head_dim(keys: Keys, key: str, hidden_size: int, num_heads: int) -> int:
    if key not in keys and hidden_size % num_heads:
        raise keys.error(key, f"is missing, and {num_heads} heads do not divide {hidden_size}")
    head_dim = keys.integer(key, hidden_size // num_heads)
    if head_dim % 2:
        raise keys.error(key, f"is {head_dim}; it must be even")
    return head_dim


def _num_kv_heads(keys: Keys, key: str, num_heads: int) -> int:
    num_kv_heads = keys.integer(key, num_heads)
    if num_heads % num_kv_heads:
        raise keys.error(key, f"is {num_kv_heads}; it must divide the {num_heads} heads")
    return num_kv_heads


def _hf_rope(keys: Keys, head_dim: int) -> tuple[float, tuple[float, ...]]:
    """Base and factors: `rope_parameters` holds both, in older files `rope_scaling` the latter."""
    theta = keys.number("rope_theta", DEFAULT_ROPE_THETA)
    rope = keys.section("rope_parameters") or keys.section("rope_scaling")
    if rope is None:
        return theta, ()
    theta = rope.number("rope_theta", theta)
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "is set: only whole heads are rotated")
    kind_key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(kind_key, "default")
    if kind == "default":
        return theta, ()
    if kind == "linear":
        return theta, (rope.number("factor"),) * (head_dim // 2)
    if kind == "llama3":
        return theta, llama3_factors(
            inverse_frequencies(theta, head_dim),
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_positions=rope.integer("original_max_position_embeddings"),
        )
    raise rope.error(kind_key, f"is {kind!r}; implemented are default, linear and llama3")


def _gguf_rope_factors(keys: Keys, weights: Weights, head_dim: int) -> tuple[float, ...]:
    """Llama 3.1 files carry the factors as a tensor."""
    kind = keys.text("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise keys.error("rope.scaling.type", f"is {kind!r}; implemented are none and linear")
    scale = keys.number("rope.scale_linear", 1.0)  # the older spelling
    if kind == "linear":
        scale = keys.number("rope.scaling.factor")
    factors = [1.0] * (head_dim // 2)
    if GGUF_ROPE_FACTORS in weights:
        factors = weights.take(GGUF_ROPE_FACTORS, (head_dim // 2,)).tolist()
    scaled = tuple(factor * scale for factor in factors)
    return scaled if any(factor != 1.0 for factor in scaled) else ()
