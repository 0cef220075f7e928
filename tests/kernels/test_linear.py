"""The packed product against float64, and that a row's bits are its own."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.linear import linear_c, pack
from tests.kernels.support import normal


@pytest.mark.parametrize("num_rows", [0, 1, 3, 8, 9, 130])
@pytest.mark.parametrize("shape", [(64, 97), (576, 96), (1, 1), (5, 48), (33, 500)])
def test_agrees_with_the_product_in_float64(num_rows: int, shape: tuple[int, int]) -> None:
    x, matrix = normal(num_rows, shape[0]), normal(*shape, seed=1)
    actual = linear_c(x, pack(matrix))
    expected = x.double() @ matrix.double()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5 * shape[0] ** 0.5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_beside_any_others_and_on_any_number_of_threads(
    threads: int,
) -> None:
    x, matrix = normal(150, 200), pack(normal(200, 250, seed=1))
    alone = torch.cat([linear_c(row.unsqueeze(0), matrix) for row in x])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for num_rows in (2, 7, 8, 9, 64, 127, 128, 129, 150):
            assert torch.equal(linear_c(x[-num_rows:], matrix), alone[-num_rows:])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(7, 97), (3, 48), (1, 1)])
def test_unpacking_gives_the_matrix_back(shape: tuple[int, int]) -> None:
    matrix = normal(*shape)
    packed = pack(matrix)
    assert torch.equal(packed.unpack(), matrix)
    indices = torch.tensor([shape[1] - 1, 0])
    assert torch.equal(packed.columns(indices), matrix[:, indices].t())


def test_takes_rows_that_do_not_lie_end_to_end() -> None:
    wide, matrix = normal(6, 90), pack(normal(40, 50))
    assert torch.equal(
        linear_c(wide[::2, 10:50], matrix), linear_c(wide[::2, 10:50].contiguous(), matrix)
    )
