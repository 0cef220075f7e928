from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

from kernels.choices import Choice, Implementation
from kernels.dispatch import Op, choose, chosen_implementations, forced
from tests.kernels.support import IMPLEMENTATIONS, every_implementation


def make_op(name: str) -> Op[[], Implementation]:
    """An op of the table whose implementations say which they are."""

    def saying(implementation: Implementation) -> Implementation:
        return implementation

    return Op(name, {one: lambda one=one: saying(one) for one in IMPLEMENTATIONS})


def test_an_op_runs_what_the_table_has_for_its_tensor() -> None:
    op = make_op("paged_attention")
    assert op.on(torch.zeros(2, 4, 256))() == "c"
    assert op.on(torch.zeros(2, 4, 256, dtype=torch.bfloat16))() == "torch"
    assert op.on(torch.zeros(2, 4, 257))() == "torch"
    assert op.on(torch.zeros(2, 4, 256))() == "c"


def test_one_row_and_128_rows_are_one_choice(caplog: pytest.LogCaptureFixture) -> None:
    """E-BATCH-INVARIANCE: whoever shares a step, the same code computes a row."""
    op = make_op("rms_norm")
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        alone = op.on(torch.zeros(1, 4099))
        assert op.on(torch.zeros(128, 4099)) is alone
        assert op.on(torch.zeros(0, 4099)) is alone
    assert len(caplog.records) == 1


def test_refuses_a_device_type_it_has_nothing_for() -> None:
    with pytest.raises(NotImplementedError, match="rms_norm runs on cpu and cuda, not on 'meta'"):
        make_op("rms_norm").on(torch.zeros(1, 8, device="meta"))
    assert not [kind for kind in chosen_implementations()["rms_norm"] if kind[0] == "meta"]


@every_implementation
def test_forced_holds_within_its_block_only(implementation: Implementation) -> None:
    op = make_op("rms_norm")
    x = torch.zeros(1, 8)
    with forced("reference"), forced(implementation):
        assert op.on(x)() == implementation
        assert choose("product", "cpu", torch.float32, 8) == implementation
    assert op.on(x)() == "c"
    assert choose("product", "cpu", torch.float32, 8) == "c"


def test_a_choice_is_logged_once_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        for _ in range(2):
            assert choose("paged_attention", "cpu", torch.bfloat16, 4098) == "torch"
            assert choose("store_kv", "cuda", torch.float16, 4098) == "triton"
    assert [record.getMessage() for record in caplog.records] == [
        "paged_attention on cpu, bfloat16, rows of 4098: torch (c takes float32 alone)",
        "store_kv on cuda, float16, rows of 4098: triton (not measured)",
    ]
    reported = chosen_implementations()
    kind = ("cpu", torch.bfloat16, 4098)
    assert reported["paged_attention"][kind] == Choice("torch", "c takes float32 alone")
    assert reported["store_kv"]["cuda", torch.float16, 4098] == Choice("triton", "not measured")


def test_computing_on_the_cpu_imports_no_triton() -> None:
    program = (
        "import sys, torch\n"
        "import kernels.copy_blocks, kernels.paged_attention, kernels.rotary, kernels.silu_mul\n"
        "import kernels.store_kv\n"
        "from kernels.rms_norm import rms_norm\n"
        "rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5)\n"
        "sys.exit('triton' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
