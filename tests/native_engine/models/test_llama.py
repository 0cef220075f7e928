from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from native_engine.errors import ModelFileError
from native_engine.models.config import ModelConfig, Rope
from native_engine.models.keys import Keys
from native_engine.models.llama import config_from_gguf, config_from_hf
from native_engine.models.rotary import rotary_tables
from native_engine.models.weights import Weights

FOLDER_KEYS: Mapping[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
GGUF_KEYS: Mapping[str, Any] = {
    "embedding_length": 64,
    "feed_forward_length": 128,
    "block_count": 3,
    "context_length": 512,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


class Tensors:
    """A source that holds what it is given."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def place(self, name: str) -> str:
        return f"memory: tensor {name}"

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def weights(**tensors: Tensor) -> Weights:
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return Weights(Tensors(named), dtype=torch.float32, device=torch.device("cpu"))


def from_folder(**changes: Any) -> ModelConfig:
    keys = {key: value for key, value in {**FOLDER_KEYS, **changes}.items() if value != "absent"}
    return config_from_hf(Keys(Path("config.json"), keys), weights())


def from_gguf(tensors: Mapping[str, Tensor] | None = None, **changes: Any) -> ModelConfig:
    named = {"model__embed_tokens__weight": torch.ones(100, 64), **(tensors or {})}
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    keys = Keys(Path("model.gguf"), {**GGUF_KEYS, **changed}, prefix="llama.")
    return config_from_gguf(keys, weights(**named))


def test_reads_a_folder_with_transformers_defaults() -> None:
    assert from_folder() == ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_positions=2048,
        rms_norm_eps=1e-6,
        rope=Rope(theta=10_000.0),
    )


def test_reads_gguf_and_sees_tied_tensors_and_biases_by_presence() -> None:
    plain = from_gguf()
    assert plain.tie_word_embeddings
    assert plain.rope_interleaved
    assert (plain.vocab_size, plain.head_dim, plain.num_kv_heads) == (100, 16, 4)
    assert not any((plain.qkv_bias, plain.output_bias, plain.mlp_bias))
    full = from_gguf(
        {
            "lm_head__weight": torch.ones(100, 64),
            "model__layers__0__self_attn__q_proj__bias": torch.ones(64),
        },
        attention__head_count_kv=2,
    )
    assert not full.tie_word_embeddings
    assert full.qkv_bias
    assert full.num_kv_heads == 2


def test_reads_the_rope_base_wherever_a_file_keeps_it() -> None:
    """L-ROPE-THETA."""
    assert from_folder(rope_theta=5e5).rope.theta == 5e5
    assert from_folder(rope_parameters={"rope_theta": 1e6}).rope.theta == 1e6
    assert from_folder(rope_theta=5e5, rope_scaling=None).rope.theta == 5e5
    assert from_gguf(rope__freq_base=1e5).rope.theta == 1e5


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    YARN,
    {**YARN, "attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "mscale": 0.8, "mscale_all_dim": 0.4},
    {**YARN, "truncate": False},
    {**YARN, "factor": 0.5},
    {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: "-".join(map(str, scaling)))
def test_scales_the_rope_as_transformers_does(scaling: dict[str, Any]) -> None:
    """L-ROPE-THETA."""
    theirs = LlamaConfig(
        **FOLDER_KEYS, rope_parameters={"rope_theta": 1e4, **scaling}, max_position_embeddings=2048
    )
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))
    old_spelling = {"type" if key == "rope_type" else key: v for key, v in scaling.items()}
    for config in (
        from_folder(rope_parameters={"rope_theta": 1e4, **scaling}),
        from_folder(rope_theta=1e4, rope_scaling=old_spelling),
    ):
        tables = rotary_tables(config, max_positions=2, device=torch.device("cpu"))[0]
        torch.testing.assert_close(tables.cos[1], frequencies.cos() * magnitude)
        torch.testing.assert_close(tables.sin[1], frequencies.sin() * magnitude)


def test_gguf_rope_factors_come_from_the_tensor_or_the_linear_scale() -> None:
    factors = torch.arange(1.0, 9.0)
    assert from_gguf({"rope_freqs__weight": factors}).rope.factors == tuple(range(1, 9))
    linear = from_gguf(rope__scaling__type="linear", rope__scaling__factor=2.0)
    assert linear.rope.factors == (2.0,) * 8
    assert from_gguf(rope__scale_linear=4.0).rope.factors == (4.0,) * 8
    assert from_gguf(rope__scaling__type="none").rope.factors == ()


def test_gguf_says_yarn_in_keys_of_its_own() -> None:
    plain = from_gguf(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=512,
    )
    assert plain.rope == from_folder(rope_scaling=YARN).rope
    own = from_gguf(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=512,
        rope__scaling__attn_factor=0.5,
        rope__scaling__yarn_beta_fast=16.0,
        rope__scaling__yarn_beta_slow=2.0,
    )
    changes = {"attention_factor": plain.rope.magnitude / 2, "beta_fast": 16.0, "beta_slow": 2.0}
    assert own.rope == from_folder(rope_scaling={**YARN, **changes}).rope


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 5120),
        ({"rope_type": "dynamic", "factor": 4.0}, 2048),
        ({"rope_type": "llama3", **LLAMA3}, 2048),
        (YARN, 2048),
        ({**YARN, "original_max_position_embeddings": 2048}, 8192),
    ],
)
def test_the_longest_context_is_that_after_stretching(
    scaling: dict[str, Any], longest: int
) -> None:
    """L-MODEL-MAX-LENGTH: a dynamic scaling would make keys depend on the length of the sequence
    that computed them, so it is used up to the original length, where it does nothing.
    """
    assert from_folder(rope_scaling=scaling).max_positions == longest
    assert from_folder(rope_parameters=scaling).max_positions == longest


@pytest.mark.parametrize(
    ("kind", "original", "longest"),
    [("linear", None, 512), ("linear", 512, 2048), ("yarn", 512, 2048), ("yarn", 64, 512)],
)
def test_a_gguf_file_says_the_longest_context_or_the_original(
    kind: str, original: int | None, longest: int
) -> None:
    config = from_gguf(
        rope__scaling__type=kind,
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=original,
    )
    assert config.max_positions == longest


def test_a_gguf_file_has_windows_in_all_layers_or_as_its_pattern_says() -> None:
    def windows(pattern: object) -> tuple[int, ...]:
        return from_gguf(
            attention__sliding_window=9, attention__sliding_window_pattern=pattern
        ).windows

    assert from_gguf().windows == ()
    assert windows(None) == (9, 9, 9)
    assert windows(2) == (9, 0, 9)
    assert windows([False, True, True]) == (0, 9, 9)
    for pattern in ([True], ["yes"] * 3):
        with pytest.raises(ModelFileError, match=r"attention\.sliding_window_pattern"):
            windows(pattern)


def test_a_position_turns_each_pair_by_its_own_angle() -> None:
    config = from_folder(rope_theta=100.0)
    tables = rotary_tables(config, max_positions=4, device=torch.device("cpu"))[0]
    assert tables.cos.shape == (4, 8)
    assert tables.cos[3, 2].item() == pytest.approx(math.cos(3 * 100 ** (-4 / 16)), abs=1e-7)
    assert tables.sin[3, 2].item() == pytest.approx(math.sin(3 * 100 ** (-4 / 16)), abs=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'; its type must be int"),
        ({"hidden_size": True}, "hidden_size is True; its type must be int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be at least 1"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the 4 heads"),
        ({"num_attention_heads": 5}, "head_dim is missing, and 5 heads do not divide 64"),
        ({"head_dim": 15}, "head_dim is 15; it must be even"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; it must be a finite number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; it must be a mapping"),
        ({"rope_scaling": {"rope_type": "foo"}}, "rope_scaling.rope_type is 'foo'; implemented"),
        ({"rope_scaling": {"type": "dynamic"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_scaling.original_max_position"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is set"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is set"),
        ({"original_max_position_embeddings": 64}, "original_max_position_embeddings is set"),
        ({"rope_scaling": {**YARN, "beta": 1.0}}, "rope_scaling.beta is set, and what it asks for"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is set, and"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
    ],
)
def test_refuses_a_folder_naming_the_key(changes: dict[str, Any], message: str) -> None:
    """L-ROPE-THETA."""
    with pytest.raises(ModelFileError, match=rf"config\.json: .*{message}"):
        from_folder(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, "block_count is missing"),
        ({"attention__head_count": [4, 4, 4]}, "attention.head_count is .*; its type must be int"),
        ({"expert_count": 8}, "expert_count is set"),
        ({"rope__dimension_count": 8}, "rope.dimension_count is 8; only the head size, 16"),
        ({"attention__value_length": 8}, "attention.value_length is 8"),
        ({"rope__scaling__type": "longrope"}, "rope.scaling.type is 'longrope'"),
    ],
)
def test_refuses_a_gguf_file_naming_the_key(changes: dict[str, Any], message: str) -> None:
    """L-ROPE-THETA."""
    with pytest.raises(ModelFileError, match=rf"model\.gguf: llama\.{message}"):
        from_gguf(**changes)
