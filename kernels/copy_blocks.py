"""Copy whole blocks of the paged KV cache onto others: what a forked sequence will write to.

The copies happen in the order given, so one may read what another before it has written, or
overwrite what another before it has read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from kernels.dispatch import Op
from kernels.triton_support import LazyKernel, next_power_of_2, require

if TYPE_CHECKING:
    import triton.language as tl

CHUNK = 1024
"""Elements of a block that one program copies."""


def copy_blocks_reference(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """One after the other. Shapes as `copy_blocks`."""
    for source, target in copies.tolist():
        key_cache[target] = key_cache[source]
        value_cache[target] = value_cache[source]


@LazyKernel
def _copy_blocks_kernel(
    key_cache, value_cache, copies, num_copies, block_numel, CHUNK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    mask = place < block_numel
    for index in range(num_copies):
        source = tl.load(copies + 2 * index) * block_numel + place
        target = tl.load(copies + 2 * index + 1) * block_numel + place
        keys = tl.load(key_cache + source, mask=mask, other=0.0)
        values = tl.load(value_cache + source, mask=mask, other=0.0)
        tl.store(key_cache + target, keys, mask=mask)
        tl.store(value_cache + target, values, mask=mask)
        tl.debug_barrier()  # the next copy may read this one's target in another thread


def copy_blocks_triton(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """One program per chunk of a block makes all copies of it in turn: so order needs no more than
    a barrier within a program, and the other programs never touch its elements.

    Raises:
        ValueError: strides the kernel does not follow.
    """
    for cache in (key_cache, value_cache):
        require(cache.is_contiguous(), "copy_blocks: the caches must be contiguous")
    require(copies.is_contiguous(), "copy_blocks: copies must be contiguous")
    num_copies = copies.shape[0]
    if num_copies:
        block_numel = key_cache[0].numel()
        chunk = min(CHUNK, next_power_of_2(block_numel))
        _copy_blocks_kernel[(-(-block_numel // chunk),)](
            key_cache, value_cache, copies, num_copies, block_numel, CHUNK=chunk
        )


_op = Op(
    "copy_blocks",
    {
        "reference": copy_blocks_reference,
        "torch": copy_blocks_reference,
        "triton": copy_blocks_triton,
    },
)


def copy_blocks(key_cache: Tensor, value_cache: Tensor, copies: Tensor) -> None:
    """Copy block `copies[i, 0]` of both caches onto block `copies[i, 1]`, for each i in turn.

    Caches `[num_blocks, num_kv_heads, block_size, head_dim]`, of one shape, are mutated; copies
    `[num_copies, 2]` int64, neither a source nor a target out of range.
    """
    _op.on(key_cache)(key_cache, value_cache, copies)
