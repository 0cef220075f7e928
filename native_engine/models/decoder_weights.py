"""Fills a `Decoder` from the tensors of a checkpoint: fuses, transposes, ties.

Knows the tensor names of the decoder; knows no file format.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from native_engine.models.config import ModelConfig
from native_engine.models.decoder import Decoder, Layer, Linear
from native_engine.models.weights import Weights

_logger = logging.getLogger(__name__)
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_ROTATED = ("self_attn.q_proj", "self_attn.k_proj")


def load_decoder(config: ModelConfig, weights: Weights) -> Decoder:
    """Take every tensor of the model.

    Raises:
        ModelFileError: one is missing or does not fit the configuration.
    """
    embedding = weights.take(_EMBEDDING, (config.vocab_size, config.hidden_size)).t().contiguous()
    return Decoder(
        config,
        embedding=embedding,
        layers=[_load_layer(config, weights, index) for index in range(config.num_layers)],
        final_norm=weights.take("model.norm.weight", (config.hidden_size,)) + config.norm_offset,
        head=_load_head(config, weights, embedding),
    )


def _load_head(config: ModelConfig, weights: Weights, embedding: Tensor) -> Tensor:
    if config.tie_word_embeddings and _HEAD not in weights:
        return embedding
    head = weights.take(_HEAD, (config.vocab_size, config.hidden_size)).t().contiguous()
    if not config.tie_word_embeddings:
        return head
    if not torch.equal(head, embedding):
        _logger.warning(
            "%s is ignored: the configuration ties it to %s, although they differ",
            _HEAD,
            _EMBEDDING,
        )
    return embedding


def _load_layer(config: ModelConfig, weights: Weights, index: int) -> Layer:
    reader = _LayerReader(config, weights, f"model.layers.{index}.")
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_key_value = {
        "self_attn.q_proj": config.query_size,
        "self_attn.k_proj": config.kv_size,
        "self_attn.v_proj": config.kv_size,
    }
    gate_up = {"mlp.gate_proj": intermediate, "mlp.up_proj": intermediate}
    # Where branches have a norm of their own, it is that which goes by the name of "post".
    post, before_mlp = "post_attention_layernorm", "pre_feedforward_layernorm"
    return Layer(
        window=config.window(index),
        input_norm=reader.norm("input_layernorm", hidden),
        qkv=reader.linear(query_key_value, hidden, has_bias=config.qkv_bias),
        query_norm=reader.norm("self_attn.q_norm", head_dim) if config.qk_norm else None,
        key_norm=reader.norm("self_attn.k_norm", head_dim) if config.qk_norm else None,
        output=reader.linear(
            {"self_attn.o_proj": hidden}, config.query_size, has_bias=config.output_bias
        ),
        attention_output_norm=reader.norm(post, hidden) if config.branch_norms else None,
        mlp_input_norm=reader.norm(before_mlp if config.branch_norms else post, hidden),
        gate_up=reader.linear(gate_up, hidden, has_bias=config.mlp_bias),
        down=reader.linear({"mlp.down_proj": hidden}, intermediate, has_bias=config.mlp_bias),
        mlp_output_norm=(
            reader.norm("post_feedforward_layernorm", hidden) if config.branch_norms else None
        ),
    )


class _LayerReader:
    """Reads one layer's tensors."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str) -> None:
        self._config = config
        self._weights = weights
        self._prefix = prefix

    def linear(self, outputs: Mapping[str, int], in_features: int, *, has_bias: bool) -> Linear:
        """The projections of `outputs` (name -> out_features) side by side: one product for all."""
        weight = torch.cat(
            [self.rows(name, ".weight", (size, in_features)).t() for name, size in outputs.items()],
            dim=1,
        )
        bias = None
        if has_bias:
            bias = torch.cat([self.rows(name, ".bias", (size,)) for name, size in outputs.items()])
        return Linear(weight.contiguous(), bias)

    def norm(self, name: str, size: int) -> Tensor:
        """The weights `[size]` of a norm."""
        return self.rows(name, ".weight", (size,)) + self._config.norm_offset

    def rows(self, name: str, suffix: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor `[out_features, ...]` of this layer."""
        tensor = self._weights.take(self._prefix + name + suffix, shape)
        if self._config.rope_interleaved and name in _ROTATED:
            return _halves_from_pairs(tensor, self._config.head_dim)
        return tensor


def _halves_from_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder each head's rows from (pair 0, pair 1, ...) to (all firsts, all seconds)."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
