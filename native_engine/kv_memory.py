"""How much memory the KV cache gets, and how many blocks that makes."""

from __future__ import annotations

import torch

from native_engine.errors import EngineError
from native_engine.machine import available_memory_bytes
from native_engine.models.config import ModelConfig

CPU_SHARE = 0.5
CPU_CAP_BYTES = 1 << 30  # 23,000 tokens of SmolLM2-135M in float32; beyond, the operator decides
CUDA_SHARE = 0.9


def block_size_bytes(config: ModelConfig, *, block_size: int, dtype: torch.dtype) -> int:
    """Keys and values of one block in all layers."""
    return 2 * config.num_layers * config.kv_size * block_size * dtype.itemsize


def automatic_cache_bytes(device: torch.device) -> int:
    """A share of what is free now, the weights being loaded; on a CPU, with a cap."""
    free_bytes = free_memory_bytes(device)
    if device.type == "cuda" and free_bytes is not None:
        return int(free_bytes * CUDA_SHARE)
    if free_bytes is None:
        return CPU_CAP_BYTES
    return min(CPU_CAP_BYTES, int(free_bytes * CPU_SHARE))


def free_memory_bytes(device: torch.device) -> int | None:
    """Free now; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return available_memory_bytes()


def num_blocks_for(
    config: ModelConfig,
    *,
    num_tokens: int,
    block_size: int,
    dtype: torch.dtype,
    free_bytes: int | None,
) -> int:
    """How many blocks hold so many tokens.

    Raises:
        EngineError: they take more than is free.
    """
    num_blocks = -(-num_tokens // block_size)
    needed = num_blocks * block_size_bytes(config, block_size=block_size, dtype=dtype)
    if free_bytes is not None and needed > free_bytes:
        raise EngineError(
            f"a KV cache of {num_tokens} tokens takes {needed} bytes, and {free_bytes} are free: "
            "let it hold fewer tokens"
        )
    return num_blocks


def num_cache_blocks(
    config: ModelConfig,
    *,
    block_size: int,
    dtype: torch.dtype,
    cache_bytes: int,
    max_model_len: int,
) -> int:
    """How many blocks fit.

    Raises:
        EngineError: not enough for one sequence of `max_model_len` tokens.
    """
    per_block = block_size_bytes(config, block_size=block_size, dtype=dtype)
    needed = -(-max_model_len // block_size)
    num_blocks = cache_bytes // per_block
    if num_blocks < needed:
        fitting = num_blocks * block_size
        raise EngineError(
            f"the KV cache of {cache_bytes} bytes holds {fitting} tokens, but one sequence may "
            f"have {max_model_len}: set kv_cache_bytes to at least {needed * per_block}, "
            f"or max_model_len to at most {fitting}"
        )
    return num_blocks
