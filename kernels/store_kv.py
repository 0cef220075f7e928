"""Write this step's keys and values into the paged KV cache.

A slot is a place for one token: `slot = block * block_size + offset`. Slot -1 stores nothing; a
step's padding rows carry it.
"""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Op


def store_kv_reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """One indexed assignment per cache. Shapes as `store_kv`."""
    block_size = key_cache.shape[2]
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    blocks, offsets = slots // block_size, slots % block_size
    key_cache[blocks, :, offsets] = key[kept]
    value_cache[blocks, :, offsets] = value[kept]


_op = Op(
    "store_kv", reference=store_kv_reference, cpu=store_kv_reference, triton=store_kv_reference
)


def store_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Copy row t of key and value to slot `slot_mapping[t]` of the caches, which are mutated.

    key and value `[num_tokens, num_kv_heads, head_dim]`; caches `[num_blocks, num_kv_heads,
    block_size, head_dim]`; slot_mapping `[num_tokens]` int64, -1 for rows to skip, no slot twice.
    """
    _op.on(key.device)(key, value, key_cache, value_cache, slot_mapping)
