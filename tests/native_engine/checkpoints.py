"""Tiny random checkpoints, written the way real ones are: as a folder and as GGUF."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_GEMMA3_NAMES = {
    **_GGUF_NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GGUF_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}

F32 = GGMLQuantizationType.F32

Metadata = Mapping[str, int | float | str | list[bool]]

SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_llama(seed: int = 0, **overrides: Any) -> LlamaForCausalLM:
    """A float32 model whose every parameter, biases and norms too, is random."""
    model = tiny_model(LlamaConfig(**{**SIZES, **overrides}), seed)
    assert isinstance(model, LlamaForCausalLM)
    return model


def tiny_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """The like, of any architecture."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.train(False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
            if "norm" in name and config.model_type != "gemma3_text":  # which adds the 1 itself
                parameter.add_(1.0)
    return model


def write_folder(model: PreTrainedModel, folder: Path, *, max_shard_size: str = "1GB") -> Path:
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def gguf_metadata(model: PreTrainedModel) -> dict[str, int | float | str | list[bool]]:
    """The keys a converter writes, without their prefix; and those for windows, of all."""
    config: dict[str, Any] = model.config.to_dict()
    head_dim = _head_dim(model)
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    return {
        **_gguf_windows(config),
        **_gguf_scaling(rope),
        "block_count": config["num_hidden_layers"],
        "context_length": _context_length(config, rope),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": rope["rope_theta"],
        "rope.dimension_count": head_dim,
        "vocab_size": config["vocab_size"],
    }


def gguf_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The tensors under GGUF's names; Llama's Q and K in its interleaved order, Gemma's norms with
    the 1 added.
    """
    config: dict[str, Any] = model.config.to_dict()
    interleaved = gguf_architecture(model) == "llama"
    is_gemma3 = gguf_architecture(model) == "gemma3"
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        if interleaved and ".q_proj." in name:
            values = _interleave(values, config["num_attention_heads"])
        if interleaved and ".k_proj." in name:
            values = _interleave(values, config["num_key_value_heads"])
        if is_gemma3 and "norm" in name:
            values = values + 1
        tensors[_gguf_name(name, _GEMMA3_NAMES if is_gemma3 else _GGUF_NAMES)] = values
    if not is_gemma3 and config["rope_parameters"]["rope_type"] == "llama3":
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, torch.device("cpu"))
        plain = config["rope_parameters"]["rope_theta"] ** -torch.linspace(0, 1, len(scaled) + 1)
        tensors["rope_freqs.weight"] = (plain[:-1] / scaled).numpy()
    return tensors


def write_gguf(
    path: Path,
    metadata: Metadata,
    tensors: Mapping[str, np.ndarray],
    *,
    matrix_type: GGMLQuantizationType = F32,
    architecture: str = "llama",
) -> Path:
    """Matrices go into `matrix_type`, vectors stay float32. Arrays of uint8 are blocks already."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.{key}", value)
        elif isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    for name, values in tensors.items():
        kind = matrix_type if values.ndim == 2 else F32
        blocks = values if values.dtype == np.uint8 else quantize(values, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_architecture(model: PreTrainedModel) -> str:
    return _GGUF_ARCHITECTURES[model.config.model_type]


def model_gguf(
    model: PreTrainedModel, path: Path, *, matrix_type: GGMLQuantizationType = F32
) -> Path:
    return write_gguf(
        path,
        gguf_metadata(model),
        gguf_tensors(model),
        matrix_type=matrix_type,
        architecture=gguf_architecture(model),
    )


def _head_dim(model: PreTrainedModel) -> int:
    config = model.config
    size: int | None = getattr(config, "head_dim", None)
    return size or config.hidden_size // config.num_attention_heads


def _context_length(config: Mapping[str, Any], rope: Mapping[str, Any]) -> int:
    """Stretched, where no key says from which length; Gemma's is so already."""
    longest: int = config["max_position_embeddings"]
    is_stretched = rope["rope_type"] != "linear" or config["model_type"] == "gemma3_text"
    return longest if is_stretched else int(longest * rope["factor"])


def _gguf_windows(config: Mapping[str, Any]) -> dict[str, int | list[bool]]:
    window = config.get("sliding_window")
    if window is None:
        return {}
    if config["model_type"] == "mistral":
        return {"attention.sliding_window": window}
    flags = [kind == "sliding_attention" for kind in config["layer_types"]]
    if config["model_type"] == "gemma3_text" and flags == [i % 6 != 5 for i in range(len(flags))]:
        return {"attention.sliding_window": window}
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": flags}


def _gguf_scaling(rope: Mapping[str, Any]) -> dict[str, int | float | str]:
    """Of the kinds there are keys for; `llama3` is a tensor."""
    if rope["rope_type"] == "linear":
        return {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] != "yarn":
        return {}
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }
    if "attention_factor" in rope:
        magnitude = 0.1 * math.log(rope["factor"]) + 1
        keys["rope.scaling.attn_factor"] = rope["attention_factor"] / magnitude
    return keys


def _gguf_name(name: str, names: Mapping[str, str]) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in names:
        return f"{names[stem]}.{suffix}"
    _, _, layer, own = stem.split(".", 3)
    return f"blk.{layer}.{names[own]}.{suffix}"


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    halves = rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)
