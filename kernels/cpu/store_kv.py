"""Writing keys and values into the paged cache, in C: one copy per token and head."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.library import loaded_library, require_contiguous, require_rows


def store_kv_c(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Shapes as the op has them.

    Raises:
        ValueError: a tensor is not float32, or lies in memory as the kernel does not follow.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    require_rows("store_kv", key, value, key_cache, value_cache)
    require_contiguous(
        "store_kv", "the caches and slot_mapping", key_cache, value_cache, slot_mapping
    )
    if not key.stride(1) == value.stride(1) == head_dim:
        raise ValueError("store_kv: the heads of one token must lie side by side")
    store = loaded_library().turnout_store
    for rows, cache in ((key, key_cache), (value, value_cache)):
        store(
            cache.data_ptr(), rows.data_ptr(), slot_mapping.data_ptr(), num_tokens, num_kv_heads,
            head_dim, rows.stride(0), cache.shape[2],
        )  # fmt: skip
