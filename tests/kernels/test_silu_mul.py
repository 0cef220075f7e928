from __future__ import annotations

import pytest
import torch

from kernels.choices import Implementation
from kernels.dispatch import forced
from kernels.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.support import assert_near, device_of, every_implementation, every_pair, normal


@every_pair
@pytest.mark.parametrize("shape", [(4, 256), (5, 246), (1, 2), (2, 2500), (0, 64)])
def test_agrees_with_the_formula_in_float64(
    implementation: Implementation, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    gate_up = normal(*shape).to(device_of(implementation), dtype)
    with forced(implementation):
        actual = silu_mul(gate_up)
    assert_near(actual, silu_mul_reference(gate_up.cpu().double()), dtype)


@every_implementation
def test_a_large_gate_neither_overflows_nor_vanishes(implementation: Implementation) -> None:
    gate_up = torch.tensor([[80.0, -80.0, 2.0, 3.0]], device=device_of(implementation))
    with forced(implementation):
        actual = silu_mul(gate_up)
    torch.testing.assert_close(actual.cpu(), torch.tensor([[160.0, 0.0]]))


@every_implementation
def test_takes_rows_that_do_not_lie_end_to_end(implementation: Implementation) -> None:
    wide = normal(6, 90).to(device_of(implementation))
    with forced(implementation):
        assert torch.equal(silu_mul(wide[::2, 10:50]), silu_mul(wide[::2, 10:50].contiguous()))


def test_on_the_cpu_a_row_does_not_depend_on_the_others() -> None:
    gate_up = normal(40, 2000)
    together = silu_mul(gate_up)
    alone = torch.cat([silu_mul(row.unsqueeze(0)) for row in gate_up])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    ("gate_up", "complaint"),
    [(torch.zeros(2, 5), "even number"), (torch.zeros(4, 2).T, "side by side")],
)
def test_triton_refuses_what_it_would_read_wrongly(gate_up: torch.Tensor, complaint: str) -> None:
    with forced("triton"), pytest.raises(ValueError, match=complaint):
        silu_mul(gate_up)
