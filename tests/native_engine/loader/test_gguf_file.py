from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from native_engine.errors import ModelFileError
from native_engine.loader.gguf_file import GGUFFile
from native_engine.loader.gguf_header import BLOCK_FORMATS, read_header
from tests.native_engine.checkpoints import write_gguf


def random_blocks(kind: GGMLQuantizationType, num_rows: int, row_elements: int) -> np.ndarray:
    """Blocks of random bytes, with a second byte 0x2X in each half float so that none is huge."""
    _, block_elements, block_bytes = BLOCK_FORMATS[kind.value]
    generator = np.random.default_rng(kind.value)
    shape = (num_rows, row_elements // block_elements * block_bytes)
    return generator.integers(0, 0x40, shape, dtype=np.uint8)


@pytest.mark.parametrize("kind", [name for name, _, _ in BLOCK_FORMATS.values()])
def test_decodes_every_format_as_the_gguf_package_does(tmp_path: Path, kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    blocks = random_blocks(quantization, 3, 512)
    other = random_blocks(quantization, 1, 256)
    path = write_gguf(
        tmp_path / "model.gguf", {}, {"first": other, "w": blocks}, matrix_type=quantization
    )
    expected = dequantize(blocks, quantization)
    values = GGUFFile(read_header(path)).read("w").numpy()
    assert values.shape == (3, 512)
    assert values.dtype == np.float32
    assert np.isfinite(expected).all()
    assert np.array_equal(values, expected)


def test_decodes_a_block_of_q8_0_by_hand(tmp_path: Path) -> None:
    scale, steps = 0.5, np.arange(-16, 16, dtype=np.int8)
    block = np.frombuffer(struct.pack("<e", scale) + steps.tobytes(), dtype=np.uint8)
    path = write_gguf(
        tmp_path / "model.gguf", {}, {"w": block[None]}, matrix_type=GGMLQuantizationType.Q8_0
    )
    values = GGUFFile(read_header(path)).read("w")
    assert values.tolist() == [[scale * step for step in range(-16, 16)]]


def test_gives_tensors_their_common_names(tmp_path: Path) -> None:
    vector = np.ones(4, dtype=np.float32)
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "blk.11.attn_q.bias": "model.layers.11.self_attn.q_proj.bias",
        "blk.3.ffn_norm.weight": "model.layers.3.post_attention_layernorm.weight",
        "blk.3.something.weight": "blk.3.something.weight",
        "rope_freqs.weight": "rope_freqs.weight",
    }
    path = write_gguf(tmp_path / "model.gguf", {}, dict.fromkeys(names, vector))
    file = GGUFFile(read_header(path))
    assert set(file.shapes) == set(names.values())
    for gguf_name, common_name in names.items():
        assert file.place(common_name) == f"{path}: tensor {gguf_name}"


def test_a_tensor_that_was_read_may_be_changed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, {"w": np.ones(4, dtype=np.float32)})
    before = path.read_bytes()
    GGUFFile(read_header(path)).read("w").zero_()
    assert path.read_bytes() == before


def test_refuses_a_file_that_vanished_after_its_header_was_read(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, {"w": np.ones(4, dtype=np.float32)})
    header = read_header(path)
    path.unlink()
    with pytest.raises(ModelFileError, match=r"model\.gguf: cannot be opened"):
        GGUFFile(header)
