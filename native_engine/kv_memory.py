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
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    free_bytes = available_memory_bytes()
    if free_bytes is None:
        return CPU_CAP_BYTES
    return min(CPU_CAP_BYTES, int(free_bytes * CPU_SHARE))


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
