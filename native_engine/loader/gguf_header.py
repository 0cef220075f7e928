"""The header of a GGUF file: metadata and where each tensor lies. Needs no torch and no numpy.

Reads format version 2 and 3, little-endian, and checks that every tensor lies inside the file, so
that a download cut short is told from a good one before anything is mapped. Does not know what the
keys mean, nor how blocks are decoded. Source: the GGUF specification, ggml/docs/gguf.md (2026).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from native_engine.errors import ModelFileError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
MAX_DIMENSIONS = 4

# type id -> (name, elements per block, bytes per block)
BLOCK_FORMATS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}

Value = bool | int | float | str | list["Value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one tensor lies. `shape` is in torch order (rows first).

    `offset` counts from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    format: str  # a name of BLOCK_FORMATS
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFHeader:
    """Metadata and tensor table of one file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorEntry]


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header.

    Raises:
        ModelFileError: not a GGUF file, of another version, cut short, or with tensors of an
        unknown format.
    """
    with _mapped(path) as data:
        cursor = _Cursor(path, data)
        if data[:4] != MAGIC:
            raise ModelFileError(f"{path}: not a GGUF file (it starts with {bytes(data[:4])!r})")
        cursor.position = 4
        version = cursor.unpack("<I")
        if version not in SUPPORTED_VERSIONS:
            raise ModelFileError(f"{path}: GGUF version {version}; this reads {SUPPORTED_VERSIONS}")
        num_tensors, num_keys = cursor.unpack("<Q"), cursor.unpack("<Q")
        metadata = _metadata(cursor, num_keys)
        tensors = _tensors(cursor, num_tensors, metadata.get("general.alignment", 32))
    return GGUFHeader(path=path, metadata=metadata, tensors=tensors)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be opened: {error.strerror}") from error
    with file:
        if path.stat().st_size < 24:
            raise ModelFileError(f"{path}: too small to be a GGUF file; download it again")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


class _Cursor:
    """Reads little-endian values one after the other; past the end is a `ModelFileError`."""

    _SCALARS: Mapping[int, str] = {
        0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
        6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
    }  # fmt: skip
    _STRING = 8
    _ARRAY = 9

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def _take(self, size_bytes: int) -> int:
        start = self.position
        if size_bytes > len(self.data) - start:
            raise ModelFileError(f"{self.path}: the header is cut short; download it again")
        self.position = start + size_bytes
        return start

    def unpack(self, layout: str) -> int:
        value = self.scalar(layout)
        assert isinstance(value, int)
        return value

    def scalar(self, layout: str) -> bool | int | float:
        (value,) = struct.unpack_from(layout, self.data, self._take(struct.calcsize(layout)))
        assert isinstance(value, bool | int | float)
        return value

    def string(self) -> str:
        size = self.unpack("<Q")
        start = self._take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{self.path}: a string in the header is not UTF-8") from error

    def value(self, kind: int) -> Value:
        if kind == self._STRING:
            return self.string()
        if kind == self._ARRAY:
            return self._array()
        if kind not in self._SCALARS:
            raise ModelFileError(f"{self.path}: metadata value of unknown type {kind}")
        return self.scalar(self._SCALARS[kind])

    def _array(self) -> Value:
        kind, length = self.unpack("<I"), self.unpack("<Q")
        if kind == self._STRING:
            return [self.string() for _ in range(length)]
        layout = self._SCALARS.get(kind)
        if layout is None:  # arrays of arrays among them: the format has them, no model does
            raise ModelFileError(f"{self.path}: metadata array of unknown type {kind}")
        width = struct.calcsize(layout)
        start = self._take(width * length)
        return list(struct.unpack_from(f"<{length}{layout[1]}", self.data, start))


def _metadata(cursor: _Cursor, num_keys: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(num_keys):
        key = cursor.string()
        if not key or key in metadata:
            raise ModelFileError(f"{cursor.path}: metadata key {key!r} is empty or comes twice")
        metadata[key] = cursor.value(cursor.unpack("<I"))
    return metadata


def _tensors(cursor: _Cursor, num_tensors: int, alignment: Value) -> dict[str, TensorEntry]:
    raw = [_raw_entry(cursor) for _ in range(num_tensors)]
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelFileError(f"{cursor.path}: general.alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorEntry] = {}
    for entry in raw:
        if entry[0] in tensors:
            raise ModelFileError(f"{cursor.path}: tensor {entry[0]} comes twice")
        tensors[entry[0]] = _placed(cursor.path, entry, start, len(cursor.data))
    return tensors


def _raw_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, shape in torch order, format id, offset from the start of the tensor data)."""
    name = cursor.string()
    num_dimensions = cursor.unpack("<I")
    if num_dimensions > MAX_DIMENSIONS:
        raise ModelFileError(f"{cursor.path}: tensor {name}: {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.unpack("<Q") for _ in range(num_dimensions)]))
    return name, shape, cursor.unpack("<I"), cursor.unpack("<Q")


def _placed(
    path: Path, entry: tuple[str, tuple[int, ...], int, int], start: int, file_size: int
) -> TensorEntry:
    name, shape, format_id, offset = entry
    if format_id not in BLOCK_FORMATS:
        known = ", ".join(name for name, _, _ in BLOCK_FORMATS.values())
        raise ModelFileError(
            f"{path}: tensor {name}: unknown format {format_id}; this reads {known}"
        )
    format_name, block_elements, block_bytes = BLOCK_FORMATS[format_id]
    num_elements = 1
    for size in shape:
        num_elements *= size
    if shape and shape[-1] % block_elements:
        raise ModelFileError(f"{path}: tensor {name}: rows of {shape[-1]} do not fit {format_name}")
    size_bytes = num_elements // block_elements * block_bytes
    if start + offset + size_bytes > file_size:
        missing = start + offset + size_bytes - file_size
        raise ModelFileError(
            f"{path}: tensor {name} reaches {missing} bytes past the end: "
            "the file is cut short; download it again"
        )
    return TensorEntry(
        name=name, shape=shape, format=format_name, offset=start + offset, size_bytes=size_bytes
    )
