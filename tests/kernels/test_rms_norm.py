from __future__ import annotations

import pytest
import torch

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.rms_norm import rms_norm, rms_norm_reference
from tests.kernels.support import assert_near, device_of, every_implementation, every_pair, normal

EPS = 1e-5


@every_pair
@pytest.mark.parametrize("shape", [(4, 128), (5, 123), (1, 1), (2, 576), (0, 64)])
def test_agrees_with_the_formula_in_float64(
    implementation: Implementation, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    device = device_of(implementation)
    x = normal(*shape).to(device, dtype)
    weight = normal(shape[1], seed=1).to(device, dtype)
    with forced(implementation):
        actual = rms_norm(x, weight, EPS)
    expected = rms_norm_reference(x.cpu().double(), weight.cpu().double(), EPS)
    assert_near(actual, expected, dtype)


@every_implementation
def test_takes_rows_that_do_not_lie_end_to_end(implementation: Implementation) -> None:
    wide = normal(6, 96).to(device_of(implementation))
    weight = torch.ones(32, device=wide.device)
    with forced(implementation):
        sliced = rms_norm(wide[::2, 32:64], weight, EPS)
        copied = rms_norm(wide[::2, 32:64].contiguous(), weight, EPS)
    assert torch.equal(sliced, copied)


@every_implementation
def test_a_row_does_not_depend_on_the_others(implementation: Implementation) -> None:
    x = normal(7, 100).to(device_of(implementation))
    weight = normal(100).to(x.device)
    with forced(implementation):
        together = rms_norm(x, weight, EPS)
        alone = torch.cat([rms_norm(row.unsqueeze(0), weight, EPS) for row in x])
    assert torch.equal(together, alone)


def test_triton_refuses_elements_that_do_not_lie_side_by_side() -> None:
    x = normal(8, 4).to(device_of("triton")).T
    with forced("triton"), pytest.raises(ValueError, match="side by side"):
        rms_norm(x, torch.ones(8, device=x.device), EPS)
