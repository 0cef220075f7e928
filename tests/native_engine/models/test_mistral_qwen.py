from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from native_engine.models import mistral, qwen2, qwen3
from native_engine.models.config import ModelConfig
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights
from tests.native_engine.models.test_llama import FOLDER_KEYS, weights

ConfigFromHF = Callable[[Keys, Weights], ModelConfig]


def read(config_from_hf: ConfigFromHF, **changes: Any) -> ModelConfig:
    return config_from_hf(Keys(Path("config.json"), {**FOLDER_KEYS, **changes}), weights())


@pytest.mark.parametrize(
    ("changes", "windows"),
    [({}, (4096,) * 3), ({"sliding_window": 9}, (9,) * 3), ({"sliding_window": None}, ())],
)
def test_mistral_has_a_window_unless_its_file_says_null(
    changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert read(mistral.config_from_hf, **changes).windows == windows


@pytest.mark.parametrize("config_from_hf", [qwen2.config_from_hf, qwen3.config_from_hf])
@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ()),
        ({"sliding_window": 9, "max_window_layers": 1}, ()),
        ({"use_sliding_window": True, "sliding_window": 9}, ()),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, ()),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, (0, 9, 9)),
    ],
)
def test_qwen_has_a_window_only_if_its_file_says_so(
    config_from_hf: ConfigFromHF, changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    assert read(config_from_hf, **changes).windows == windows


def test_qwen2_has_biases_and_qwen3_norms_that_no_key_speaks_of() -> None:
    second, third = read(qwen2.config_from_hf), read(qwen3.config_from_hf)
    assert (second.qkv_bias, second.output_bias, second.qk_norm) == (True, False, False)
    assert (third.qkv_bias, third.qk_norm, third.head_dim) == (False, True, 128)
