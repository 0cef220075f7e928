"""Write this step's keys and values into the paged KV cache.

A slot is a place for one token: `slot = block * block_size + offset`. Slot -1 stores nothing; a
step's padding rows carry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from kernels.cpu.store_kv import store_kv_c
from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, next_power_of_2, require

if TYPE_CHECKING:
    import triton.language as tl


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


@LazyKernel
def _store_kv_kernel(
    key, value, key_cache, value_cache, slot_mapping, key_stride, value_stride, num_kv_heads,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    head = tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    mask = (head < num_kv_heads) & (dim < HEAD_DIM) & (slot >= 0)
    source = head * HEAD_DIM + dim
    place = (slot // BLOCK_SIZE * num_kv_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    target = place * HEAD_DIM + dim
    keys = tl.load(key + token * key_stride + source, mask=mask, other=0.0)
    tl.store(key_cache + target, keys, mask=mask)
    values = tl.load(value + token * value_stride + source, mask=mask, other=0.0)
    tl.store(value_cache + target, values, mask=mask)


def store_kv_triton(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """One program per token copies all its heads.

    Raises:
        ValueError: strides the kernel does not follow.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    for rows in (key, value):
        require(
            rows.stride(2) == 1 and rows.stride(1) == head_dim,
            "store_kv: the heads of one token must lie side by side",
        )
    for cache in (key_cache, value_cache):
        require(cache.is_contiguous(), "store_kv: the caches must be contiguous")
        require(cache.dtype == key.dtype, "store_kv: the caches must have the dtype of the keys")
    require(slot_mapping.is_contiguous(), "store_kv: slot_mapping must be contiguous")
    if num_tokens:
        _store_kv_kernel[(num_tokens,)](
            key, value, key_cache, value_cache, slot_mapping,
            key.stride(0), value.stride(0), num_kv_heads,
            BLOCK_SIZE=key_cache.shape[2], HEAD_DIM=head_dim,
            HEADS=next_power_of_2(num_kv_heads), DIM=next_power_of_2(head_dim),
        )  # fmt: skip


_op = Op(
    "store_kv",
    {
        "reference": store_kv_reference,
        "torch": store_kv_reference,
        "c": store_kv_c,
        "triton": store_kv_triton,
    },
)


def store_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Copy row t of key and value to slot `slot_mapping[t]` of the caches, which are mutated.

    key and value `[num_tokens, num_kv_heads, head_dim]`; caches `[num_blocks, num_kv_heads,
    block_size, head_dim]`; slot_mapping `[num_tokens]` int64, -1 for rows to skip, no slot twice.
    """
    _op.on(key)(key, value, key_cache, value_cache, slot_mapping)
