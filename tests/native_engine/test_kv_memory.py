from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from native_engine.errors import EngineError
from native_engine.kv_memory import (
    CPU_CAP_BYTES,
    automatic_cache_bytes,
    block_size_bytes,
    num_cache_blocks,
)
from native_engine.models.config import ModelConfig, Rope

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=128,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=512,
    rms_norm_eps=1e-5,
    rope=Rope(theta=1e4),
)


def num_blocks(cache_bytes: int, max_model_len: int) -> int:
    return num_cache_blocks(
        CONFIG,
        block_size=16,
        dtype=torch.float32,
        cache_bytes=cache_bytes,
        max_model_len=max_model_len,
    )


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    size = block_size_bytes(CONFIG, block_size=16, dtype=torch.bfloat16)
    assert size == 2 * 3 * 2 * 16 * 16 * 2
    wider = replace(CONFIG, num_kv_heads=4)
    assert block_size_bytes(wider, block_size=16, dtype=torch.float32) == 4 * size


def test_as_many_blocks_as_fit() -> None:
    per_block = block_size_bytes(CONFIG, block_size=16, dtype=torch.float32)
    assert num_blocks(10 * per_block - 1, max_model_len=144) == 9


def test_refuses_a_cache_too_small_for_one_context_saying_what_to_set() -> None:
    per_block = block_size_bytes(CONFIG, block_size=16, dtype=torch.float32)
    needed = 10 * per_block
    message = (
        "holds 144 tokens, but one sequence may have 145: "
        f"set kv_cache_bytes to at least {needed}, or max_model_len to at most 144"
    )
    with pytest.raises(EngineError, match=message):
        num_blocks(needed - 1, max_model_len=145)


def test_the_automatic_size_on_a_cpu_is_capped() -> None:
    assert 0 < automatic_cache_bytes(torch.device("cpu")) <= CPU_CAP_BYTES
