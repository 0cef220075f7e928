"""Matrix products in which a row's result does not depend, bit for bit, on the rows beside it.

A library picks its algorithm by the number of rows, and two algorithms may round differently; where
they change over depends on the library, the processor, the threads and the shape. So it is measured
at start, on the model's own matrices: padded to how many rows at least, and in tiles of how many
rows at most, is a row's product always the same? Packed matrices have a product of ours, which has
the property by construction. The problem: He et al., "Defeating nondeterminism in LLM inference",
2025.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kernels.cpu.linear import PackedMatrix, linear_c

PADDINGS = (1, 2, 4, 8, 16)
TILES = (64, 32, 16)  # tried after no tiling at all
_MULTIPLES = (1, 2, 3, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantProduct:
    """`x @ matrix`, for x with a multiple of `padding` rows."""

    padding: int = 1
    max_rows: Mapping[torch.Size, int] = field(default_factory=dict)  # by shape; absent: any number
    is_invariant: bool = False

    def padded(self, num_rows: int) -> int:
        """The next multiple of `padding`."""
        return -(-num_rows // self.padding) * self.padding

    def __call__(self, x: Tensor, matrix: Tensor | PackedMatrix) -> Tensor:
        """`[num_rows, in_features]` by `[in_features, out_features]`."""
        if isinstance(matrix, PackedMatrix):
            return linear_c(x, matrix)
        tile = self.max_rows.get(matrix.shape)
        if tile is None or x.shape[0] <= tile:
            return torch.mm(x, matrix)
        product = x.new_empty(x.shape[0], matrix.shape[1])
        for rows, out in zip(torch.split(x, tile), torch.split(product, tile), strict=True):
            torch.mm(rows, matrix, out=out)
        return product


def find_invariant_product(matrices: Iterable[tuple[Tensor, int]]) -> InvariantProduct:
    """The product with the least padding, then the largest tiles; if none helps, the plain one.

    matrices: each `[in_features, out_features]` on the CPU, with the most rows it will meet. Tried
    are some multiples of the padding, not all numbers of rows: 0.13 s for SmolLM2-135M on 2 busy
    cores, most of it at its head.
    """
    padding = 1
    tiles: dict[torch.Size, int] = {}
    for matrix, most_rows in {matrix.shape: (matrix, rows) for matrix, rows in matrices}.values():
        found = _Probe(matrix, most_rows).find()
        if found is None:
            return InvariantProduct()
        padding = max(padding, found[0])  # powers of two: the larger is a multiple of the smaller
        if found[1] < most_rows:
            tiles[matrix.shape] = found[1]
    return InvariantProduct(padding=padding, max_rows=tiles, is_invariant=True)


class _Probe:
    """One matrix, random rows, and their products computed in different numbers of rows."""

    def __init__(self, matrix: Tensor, most_rows: int) -> None:
        self._matrix = matrix
        self._most_rows = max(most_rows, TILES[-1])
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(self._most_rows, matrix.shape[0], generator=generator)
        self._rows = rows.to(matrix.dtype)
        self._alone: dict[int, Tensor] = {}
        self._together: dict[int, Tensor] = {}

    def find(self) -> tuple[int, int] | None:
        """(padding, most rows of a tile), if any pair will do."""
        tiles = [self._most_rows, *(tile for tile in TILES if tile < self._most_rows)]
        for padding, tile in itertools.product(PADDINGS, tiles):
            sizes = (padding * multiple for multiple in _MULTIPLES)
            if all(self._is_same(size, tile) for size in sizes if size <= tile):
                return padding, tile
        return None

    def _is_same(self, size: int, tile: int) -> bool:
        """Whether the first `size` rows, alone, come out as among `tile` rows in reverse order."""
        if size not in self._alone:
            self._alone[size] = torch.mm(self._rows[:size].clone(), self._matrix)
        if tile not in self._together:
            self._together[tile] = torch.mm(self._rows[:tile].flip(0), self._matrix).flip(0)
        return torch.equal(self._alone[size], self._together[tile][:size])
