from __future__ import annotations

import torch

from native_engine.batch_invariance import InvariantProduct, find_invariant_product


def random_matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))


def test_a_row_has_the_same_bits_beside_any_others() -> None:
    matrices = [random_matrix(1536, 576), random_matrix(576, 960), random_matrix(64, 97)]
    product = find_invariant_product([(matrix, 128) for matrix in matrices])
    assert product.is_invariant
    for matrix in matrices:
        x = random_matrix(128, matrix.shape[0])
        whole = product(x, matrix)
        for size in range(product.padding, 128, product.padding):
            first = (128 - size) // 3
            alone = product(x[first : first + size].clone(), matrix)
            assert torch.equal(alone, whole[first : first + size])


def test_tiles_make_up_the_whole_product() -> None:
    matrix = random_matrix(8, 5)
    tiled = InvariantProduct(max_rows={matrix.shape: 3})
    for num_rows in (1, 3, 7, 9):
        x = random_matrix(num_rows, 8)
        torch.testing.assert_close(tiled(x, matrix), x @ matrix)


def test_rows_are_padded_to_the_next_multiple() -> None:
    product = InvariantProduct(padding=4)
    assert [product.padded(rows) for rows in (1, 4, 5, 8)] == [4, 4, 8, 8]
