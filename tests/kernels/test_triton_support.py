from __future__ import annotations

import sys

import pytest
import torch

from kernels.triton_support import LazyKernel, next_power_of_2


@LazyKernel
def _never_launched_kernel(out: torch.Tensor) -> None:
    raise AssertionError("not reached")


def test_without_a_gpu_or_the_interpreter_a_launch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="_never_launched_kernel needs a GPU"):
        _never_launched_kernel[(1,)]


def test_without_triton_a_launch_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RuntimeError, match=r"needs triton.*install turnout\[gpu\]"):
        _never_launched_kernel[(1,)]


@pytest.mark.parametrize(("size", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (80, 128)])
def test_the_next_power_of_two_is_never_smaller(size: int, power: int) -> None:
    assert next_power_of_2(size) == power
