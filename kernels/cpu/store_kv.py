"""Writing keys and values into the paged cache, in C: one copy per token and head."""

from __future__ import annotations

from torch import Tensor

from kernels.cpu.library import loaded_library


def store_kv_c(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Shapes as the op has them; float32, contiguous caches, a token's heads side by side."""
    num_tokens, num_kv_heads, head_dim = key.shape
    store = loaded_library().turnout_store
    for rows, cache in ((key, key_cache), (value, value_cache)):
        store(
            cache.data_ptr(), rows.data_ptr(), slot_mapping.data_ptr(), num_tokens, num_kv_heads,
            head_dim, rows.stride(0), cache.shape[2],
        )  # fmt: skip
