"""From a path to a model: the one entry point of the loader.

A path is a GGUF file or a Hugging Face folder. Everything wrong with it is one `ModelFileError`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from native_engine.loader.gguf_file import GGUFFile
from native_engine.loader.gguf_header import read_header
from native_engine.loader.hf_folder import HFFolder, read_config
from native_engine.models import Architecture, find_architecture, known_architectures
from native_engine.models.config import ModelConfig
from native_engine.models.decoder import Decoder
from native_engine.models.decoder_weights import load_decoder
from native_engine.models.keys import Keys
from native_engine.models.weights import Weights

_HARMLESS_GGUF_KEYS = ("tensor_data_layout", "rope.scaling.finetuned")  # notes of a converter


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Read the whole model into memory in one dtype on one device; the file may go afterwards.

    Raises:
        ModelFileError: a file is missing or cut short, a key or tensor is missing, unknown or of
        the wrong kind, or the model needs something not implemented here.
    """
    config, weights = (_open_folder if path.is_dir() else _open_gguf)(path, dtype, device)
    model = load_decoder(config, weights)
    weights.check_none_left()
    return model


def _open_folder(
    path: Path, dtype: torch.dtype, device: torch.device
) -> tuple[ModelConfig, Weights]:
    keys = read_config(path)
    architecture = _architecture(keys, "architectures", keys.strings("architectures"))
    weights = Weights(HFFolder(path), dtype=dtype, device=device)
    return architecture.config_from_hf(keys, weights), weights


def _open_gguf(path: Path, dtype: torch.dtype, device: torch.device) -> tuple[ModelConfig, Weights]:
    header = read_header(path)
    keys = Keys(path, header.metadata)
    name = keys.text("general.architecture")
    architecture = _architecture(keys, "general.architecture", [name])
    prefix = f"{name}."
    own = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }
    own_keys = Keys(path, own, prefix=prefix)
    weights = Weights(GGUFFile(header), dtype=dtype, device=device)
    config = architecture.config_from_gguf(own_keys, weights)
    own_keys.check_all_read(harmless=_HARMLESS_GGUF_KEYS)
    return config, weights


def _architecture(keys: Keys, key: str, names: list[str]) -> Architecture:
    for name in names:
        architecture = find_architecture(name)
        if architecture is not None:
            return architecture
    known = ", ".join(known_architectures())
    raise keys.error(key, f"is {names!r}; implemented are {known}")
