from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from native_engine.errors import ModelFileError
from native_engine.loader.gguf_header import read_header
from tests.native_engine.checkpoints import model_gguf, tiny_llama, write_gguf

STRING, ARRAY, UINT8, UINT32 = 8, 9, 0, 4


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def key_value(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor_entry(
    name: bytes, shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0
) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return string(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def write(
    path: Path,
    *,
    keys: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    magic: bytes = b"GGUF",
    version: int = 3,
    num_keys: int | None = None,
) -> Path:
    counts = struct.pack("<QQ", len(tensors), len(keys) if num_keys is None else num_keys)
    head = magic + struct.pack("<I", version) + counts + b"".join(keys) + b"".join(tensors)
    path.write_bytes(head + bytes(256))
    return path


def test_reads_metadata_and_places_tensors(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = write_gguf(tmp_path / "model.gguf", {"count": 7, "name": "äö"}, {"matrix": values})
    header = read_header(path)
    entry = header.tensors["matrix"]
    assert header.metadata["llama.count"] == 7
    assert header.metadata["llama.name"] == "äö"
    assert (entry.shape, entry.format, entry.size_bytes) == ((3, 4), "F32", 48)
    assert path.read_bytes()[entry.offset : entry.offset + 48] == values.tobytes()


def test_reads_arrays_of_strings_and_numbers(tmp_path: Path) -> None:
    strings = struct.pack("<IQ", STRING, 2) + string(b"a") + string(b"")
    numbers = struct.pack("<IQ", UINT8, 3) + b"\x01\x02\x03"
    keys = (key_value(b"strings", ARRAY, strings), key_value(b"numbers", ARRAY, numbers))
    metadata = read_header(write(tmp_path / "model.gguf", keys=keys)).metadata
    assert metadata == {"strings": ["a", ""], "numbers": [1, 2, 3]}


def test_refuses_a_file_cut_short_anywhere(tmp_path: Path) -> None:
    """L-GGUF-TRUNCATED."""
    path = model_gguf(tiny_llama(), tmp_path / "model.gguf")
    whole = path.read_bytes()
    end_of_data = max(
        entry.offset + entry.size_bytes for entry in read_header(path).tensors.values()
    )
    for size in [0, 4, 23, 24, 100, 1000, *range(1500, end_of_data, 9973), end_of_data - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"model\.gguf: .*(download it again|short)"):
            read_header(path)


def test_names_the_tensor_that_reaches_past_the_end(tmp_path: Path) -> None:
    """L-GGUF-TRUNCATED."""
    for offset, shape in ((2**63, (4,)), (0, (2**42 + 1,)), (0, (2**40, 2**40)), (224, (64,))):
        path = write(tmp_path / "model.gguf", tensors=(tensor_entry(b"w", shape, offset=offset),))
        with pytest.raises(ModelFileError, match=r"model\.gguf: tensor w reaches \d+ bytes past"):
            read_header(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"magic": b"GGML"}, "not a GGUF file"),
        ({"version": 99}, "version 99"),
        ({"version": 1}, "version 1"),
        ({"num_keys": 2**60}, "key '' is empty"),
        ({"keys": (struct.pack("<Q", 2**60) + b"key",)}, "cut short"),
        ({"keys": (key_value(b"", UINT32, bytes(4)),)}, "key '' is empty"),
        ({"keys": (key_value(b"k", UINT32, bytes(4)),) * 2}, "key 'k' is empty or comes twice"),
        ({"keys": (key_value(b"k", 77, b""),)}, "unknown type 77"),
        ({"keys": (key_value(b"k", STRING, string(b"\xff")),)}, "not UTF-8"),
        (
            {"keys": (key_value(b"k", ARRAY, struct.pack("<IQ", 77, 0)),)},
            "array of unknown type 77",
        ),
        ({"keys": (key_value(b"k", ARRAY, struct.pack("<IQ", UINT8, 2**60)),)}, "cut short"),
        (
            {"keys": (key_value(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5000),)},
            "unknown type 9",
        ),
        ({"keys": (key_value(b"general.alignment", UINT32, bytes(4)),)}, "alignment is 0"),
        ({"tensors": (tensor_entry(b"w", (1,) * 9),)}, "tensor w: 9 dimensions"),
        ({"tensors": (tensor_entry(b"w", kind=16),)}, "tensor w: unknown format 16"),
        ({"tensors": (tensor_entry(b"w", (33,), kind=8),)}, "tensor w: rows of 33"),
        ({"tensors": (tensor_entry(b"w"),) * 2}, "tensor w comes twice"),
    ],
)
def test_refuses_a_damaged_header_naming_the_damage(
    tmp_path: Path, damage: dict[str, object], message: str
) -> None:
    """L-GGUF-TRUNCATED."""
    path = write(tmp_path / "model.gguf", **damage)  # type: ignore[arg-type]
    with pytest.raises(ModelFileError, match=rf"model\.gguf: .*{message}"):
        read_header(path)


def test_refuses_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf: cannot be opened: No such file"):
        read_header(tmp_path / "absent.gguf")
