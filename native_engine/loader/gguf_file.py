"""The tensors of a GGUF file under their common names, dequantised on reading.

`gguf_header` says where they lie; the `gguf` package decodes the blocks. Knows no architecture.
Source: the GGUF specification's standardised tensor names, ggml/docs/gguf.md (2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from native_engine.errors import ModelFileError
from native_engine.loader.gguf_header import GGUFHeader

_GLOBAL_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BRANCH_NORM_NAMES: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""In files that norm what a branch gives, where the common names have another logic."""

_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_COMMON_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


class GGUFFile:
    """A `TensorSource` over one file, which stays mapped while this object lives."""

    def __init__(self, header: GGUFHeader) -> None:
        self._path = header.path
        self._layer_names = dict(_LAYER_NAMES)
        if "blk.0.post_attention_norm.weight" in header.tensors:
            self._layer_names |= _BRANCH_NORM_NAMES
        self._entries = {self._common_name(name): entry for name, entry in header.tensors.items()}
        try:
            mapping = np.memmap(header.path, dtype=np.uint8, mode="r")
        except OSError as error:
            raise ModelFileError(f"{header.path}: cannot be opened: {error.strerror}") from error
        self._bytes = np.asarray(mapping)  # slices of the subclass cost 0.6 s over a 98 MB file

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self._entries.items()}

    def place(self, name: str) -> str:
        return f"{self._path}: tensor {self._gguf_name(name)}"

    def read(self, name: str) -> Tensor:
        """Float32, whatever the blocks are."""
        entry = self._entries[name]
        blocks = self._bytes[entry.offset : entry.offset + entry.size_bytes]
        rows = blocks.reshape(*entry.shape[:-1], -1)
        values = dequantize(rows, GGMLQuantizationType[entry.format])
        if values.shape != entry.shape:
            raise ModelFileError(
                f"{self.place(name)}: the blocks decode to {list(values.shape)}, "
                f"but the header says {list(entry.shape)}"
            )
        # A float32 tensor is a view of the file: copied, since a mapping must not be written to.
        return torch.from_numpy(values.copy() if entry.format == "F32" else values)

    def _common_name(self, name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        if stem in _GLOBAL_NAMES:
            return f"{_GLOBAL_NAMES[stem]}.{suffix}"
        match = _LAYER_NAME.fullmatch(name)
        if match and match[2] in self._layer_names:
            return f"model.layers.{match[1]}.{self._layer_names[match[2]]}.{match[3]}"
        return name

    def _gguf_name(self, name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        for gguf_stem, common_stem in _GLOBAL_NAMES.items():
            if stem == common_stem:
                return f"{gguf_stem}.{suffix}"
        match = _COMMON_LAYER_NAME.fullmatch(name)
        for gguf_stem, common_stem in self._layer_names.items():
            if match and match[2] == common_stem:
                return f"blk.{match[1]}.{gguf_stem}.{match[3]}"
        return name
