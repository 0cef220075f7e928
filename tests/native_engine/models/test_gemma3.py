from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from native_engine.errors import ModelFileError
from native_engine.models.config import ModelConfig, Rope
from native_engine.models.gemma3 import config_from_gguf, config_from_hf
from native_engine.models.keys import Keys
from tests.native_engine.models.test_llama import FOLDER_KEYS, GGUF_KEYS, weights

LINEAR = {"rope_type": "linear", "factor": 8.0}


def from_folder(**changes: Any) -> ModelConfig:
    keys = {**FOLDER_KEYS, "hidden_activation": "gelu_pytorch_tanh", **changes}
    return config_from_hf(Keys(Path("config.json"), keys), weights())


def from_gguf(changes: Mapping[str, Any]) -> ModelConfig:
    keys = {**GGUF_KEYS, "attention.sliding_window": 512, **changes}
    tensors = weights(model__embed_tokens__weight=torch.ones(100, 64))
    return config_from_gguf(Keys(Path("model.gguf"), keys, prefix="gemma3."), tensors)


def test_reads_a_folder_with_transformers_defaults() -> None:
    config = from_folder(num_hidden_layers=7)
    assert config.head_dim == 256
    assert config.max_positions == 131_072
    assert config.windows == (4096,) * 5 + (0, 4096)
    assert (config.rope, config.window_rope) == (Rope(theta=1e6), Rope(theta=1e4))
    assert config.attention_scale == 1 / 16
    assert config.embedding_scale == 8
    assert config.norm_offset == 1
    assert config.tie_word_embeddings


def test_only_layers_that_see_everything_are_scaled_in_old_files() -> None:
    config = from_folder(
        rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling=LINEAR, sliding_window_pattern=2
    )
    assert config.windows == (4096, 0, 4096)
    scaled = Rope(theta=5e5, factors=(8.0,) * 128)
    assert [config.layer_rope(layer) for layer in (0, 1)] == [Rope(theta=2e4), scaled]


def test_newer_files_name_each_layer_and_each_rope() -> None:
    config = from_folder(
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        sliding_window=9,
        rope_parameters={
            "full_attention": {"rope_theta": 5e5, **LINEAR},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    )
    assert config.windows == (0, 9, 0)
    assert config.rope == Rope(theta=5e5, factors=(8.0,) * 128)
    assert config.window_rope == Rope(theta=3e4)


def test_gguf_has_added_the_1_to_its_norms_and_knows_27b_by_its_layers() -> None:
    config = from_gguf({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    assert config.norm_offset == 0
    assert not config.rope_interleaved
    assert config.rope == Rope(theta=1e6, factors=(8.0,) * 8)
    assert config.window_rope == Rope(theta=1e4)
    assert config.attention_scale == 0.25
    largest = from_gguf({"block_count": 62, "attention.key_length": 32})
    assert largest.attention_scale == 0.25  # by 64 / 4, not by 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; only 'gelu_pytorch_tanh'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is set"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 3 layers"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types names 'chunked_attention'"),
    ],
)
def test_refuses_a_folder_naming_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: {message}"):
        from_folder(**changes)


def test_refuses_a_gguf_file_naming_the_key() -> None:
    with pytest.raises(ModelFileError, match=r"gemma3\.attention\.sliding_window is missing"):
        from_gguf({"attention.sliding_window": None})
