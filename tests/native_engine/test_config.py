from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from native_engine.config import EngineConfig


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "int8"),
        ("device", "tpu"),
        ("block_size", 12),
        ("block_size", 4),
        ("block_size", 512),
        ("max_model_len", -1),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", 31),
        ("max_waiting", -1),
        ("max_waiting_tokens", -1),
        ("max_bypass", -1),
        ("aging_s", 0.0),
        ("aging_s", math.inf),
        ("aging_s", math.nan),
        ("target_itl_s", -0.1),
        ("target_itl_s", math.inf),
        ("kv_cache_bytes", -1),
        ("cpu_threads", -1),
        ("max_cached_share", 0.0),
        ("max_cached_share", 1.1),
        ("speculation", "eagle"),
        ("max_draft_tokens", 0),
        ("max_draft_tokens", 65),
        ("num_token_ids", -1),
    ],
)
def test_refuses_an_option_out_of_range_naming_it(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be"):
        EngineConfig(model=Path("model"), **{option: value})


def test_the_defaults_are_in_range() -> None:
    assert EngineConfig(model=Path("model")).max_num_batched_tokens == 128
