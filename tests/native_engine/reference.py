"""The same model in transformers: what our numbers and tokens are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from kernels.cpu.linear import PackedMatrix
from native_engine.models.decoder import Decoder, Linear, Matrix


def transformers_model(decoder: Decoder) -> LlamaForCausalLM:
    """A float32 `LlamaForCausalLM` with the weights of ours, which must be float32 too."""
    config = decoder.config
    assert not config.rope.factors
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.qkv_bias,
            mlp_bias=config.mlp_bias,
        )
    )
    state = _state(decoder)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    model.train(False)
    return model


def greedy_tokens(model: LlamaForCausalLM, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers answers, ending at no token."""
    generated: list[int] = []
    cache = DynamicCache()
    token_ids = list(prompt)
    with torch.inference_mode():
        for _ in range(num_tokens):
            logits = model(torch.tensor([token_ids]), cache=cache, use_cache=True).logits
            token_ids = [int(logits[0, -1].argmax())]
            generated += token_ids
    return generated


def prompt_logits(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
    """`[len(prompt), vocab_size]` float32."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(prompt)])).logits[0]
    return logits


def most_likely_after(
    model: PreTrainedModel, prompt: Sequence[int], answer: list[int]
) -> list[int]:
    """transformers' greedy choice at every position of the answer, from one pass over both."""
    logits = prompt_logits(model, [*prompt, *answer[:-1]])
    return [int(token) for token in torch.argmax(logits[len(prompt) - 1 :], dim=-1)]


def _state(decoder: Decoder) -> dict[str, Tensor]:
    config = decoder.config
    state = {
        "model.embed_tokens.weight": _rows(decoder._embedding),
        "model.norm.weight": decoder._final_norm,
    }
    if not config.tie_word_embeddings:
        state["lm_head.weight"] = _rows(decoder._head)
    query_key_value = {
        "self_attn.q_proj": config.query_size,
        "self_attn.k_proj": config.kv_size,
        "self_attn.v_proj": config.kv_size,
    }
    gate_up = {"mlp.gate_proj": config.intermediate_size, "mlp.up_proj": config.intermediate_size}
    for index, layer in enumerate(decoder.layers):
        own = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.mlp_input_norm,
            **_split(layer.qkv, query_key_value),
            **_split(layer.output, {"self_attn.o_proj": config.hidden_size}),
            **_split(layer.gate_up, gate_up),
            **_split(layer.down, {"mlp.down_proj": config.hidden_size}),
        }
        state.update({f"model.layers.{index}.{name}": tensor for name, tensor in own.items()})
    return state


def _split(linear: Linear, sizes: dict[str, int]) -> dict[str, Tensor]:
    parts = torch.split(_rows(linear.weight), list(sizes.values()))
    state = {f"{name}.weight": part for name, part in zip(sizes, parts, strict=True)}
    if linear.bias is not None:
        biases = torch.split(linear.bias, list(sizes.values()))
        state |= {f"{name}.bias": bias for name, bias in zip(sizes, biases, strict=True)}
    return state


def _rows(matrix: Matrix) -> Tensor:
    """As files hold it: `[out_features, in_features]`."""
    return (matrix.unpack() if isinstance(matrix, PackedMatrix) else matrix).t()
