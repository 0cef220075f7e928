from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from kernels.dispatch import Implementation, Op, chosen_implementations, forced


def make_op(name: str) -> Op[[Tensor], str]:
    return Op(name, reference=lambda x: "reference", cpu=lambda x: "cpu", triton=lambda x: "triton")


def test_a_device_type_gets_its_implementation() -> None:
    op = make_op("by_device")
    x = torch.zeros(1)
    assert op.on(torch.device("cpu"))(x) == "cpu"
    assert op.on(torch.device("cuda", 1))(x) == "triton"


def test_refuses_a_device_type_it_has_nothing_for() -> None:
    with pytest.raises(NotImplementedError, match="nowhere runs on cpu and cuda, not on 'meta'"):
        make_op("nowhere").on(torch.device("meta"))


@pytest.mark.parametrize("implementation", ["reference", "cpu", "triton"])
def test_forced_holds_within_its_block_only(implementation: Implementation) -> None:
    op = make_op("forced")
    x = torch.zeros(1)
    with forced("cpu"), forced(implementation):
        assert op.on(x.device)(x) == implementation
    assert op.on(x.device)(x) == "cpu"


def test_a_choice_is_made_once_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    op = make_op("reported")
    assert "reported" not in chosen_implementations()
    with caplog.at_level(logging.INFO, logger="kernels.dispatch"):
        op.on(torch.device("cpu"))
        op.on(torch.device("cpu"))
    assert [record.getMessage() for record in caplog.records] == ["reported on cpu: cpu"]
    assert chosen_implementations()["reported"] == {"cpu": "cpu"}


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
