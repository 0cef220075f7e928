"""Matrix products in which a row's result does not depend, bit for bit, on the rows beside it.

A library picks its algorithm by the number of rows, and two algorithms may round differently; where
they change over depends on the library, the processor, the threads and the shape. So it is measured
at start, on the model's own matrices: padded to how many rows at least, and in tiles of how many
rows at most, is a row's product always the same? The problem: He et al., "Defeating nondeterminism
in LLM inference", 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

PADDINGS = (1, 2, 4, 8, 16)
TILES = (64, 32, 16)  # tried after no tiling at all
_MULTIPLES = (1, 2, 3, 5, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantProduct:
    """`x @ matrix`, for x with a multiple of `padding` rows."""

    padding: int = 1
    max_rows: Mapping[torch.Size, int] = field(default_factory=dict)  # by shape; absent: any number
    is_invariant: bool = False

    def padded(self, num_rows: int) -> int:
        """The next multiple of `padding`."""
        return -(-num_rows // self.padding) * self.padding

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """`[num_rows, in_features]` by `[in_features, out_features]`."""
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
    are some multiples of the padding, not all numbers of rows: 70 ms for SmolLM2-135M, most of it
    at its head (2 threads).
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
    """One matrix, random rows, and their product computed in different numbers of rows."""

    def __init__(self, matrix: Tensor, most_rows: int) -> None:
        self._matrix = matrix
        self._most_rows = max(most_rows, TILES[-1])
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(self._most_rows, matrix.shape[0], generator=generator)
        self._rows = rows.to(matrix.dtype)

    def find(self) -> tuple[int, int] | None:
        """(padding, most rows of a tile), if any pair will do."""
        tiles = [self._most_rows, *(tile for tile in TILES if tile < self._most_rows)]
        whole = {tile: self._product(0, tile) for tile in tiles}
        for padding in PADDINGS:
            for tile in tiles:
                if self._holds(padding, whole[tile]):
                    return padding, tile
        return None

    def _holds(self, padding: int, whole: Tensor) -> bool:
        """Whether few rows, out of the middle and alone, come out as among all the others."""
        for size in (padding * multiple for multiple in _MULTIPLES):
            first = max(0, len(whole) - size) // 2
            alone = self._product(first, min(size, len(whole)))
            if not torch.equal(alone, whole[first : first + size]):
                return False
        return True

    def _product(self, first: int, num_rows: int) -> Tensor:
        # Cloned: a step's rows are an allocation of their own, too.
        return torch.mm(self._rows[first : first + num_rows].clone(), self._matrix)
