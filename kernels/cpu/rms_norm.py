"""RMS norm on the CPU: in C, or torch's own, 1.2 to 1.6 times as fast as the formula spelled out.

Measured on `[1 | 4 | 32 | 128, 576]` float32, 1 thread: torch's takes 25, 18, 24, 80 us in place of
the formula's 39, 29, 34, 100. A row's bits do not depend on the other rows or the number of threads
(compared for 8 widths, up to 300 rows and 7 threads; in C by construction).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.library import loaded_library, require_rows


def rms_norm_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x `[num_tokens, hidden]`, weight `[hidden]`. A new tensor like x."""
    return functional.rms_norm(x, weight.shape, weight, eps)


def rms_norm_c(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in C.

    Raises:
        ValueError: a tensor is not float32, or a row's elements do not lie side by side.
    """
    require_rows("rms_norm", x, weight)
    num_tokens, hidden = x.shape
    out = x.new_empty(num_tokens, hidden)
    loaded_library().turnout_rms_norm(
        out.data_ptr(), x.data_ptr(), weight.data_ptr(), num_tokens, hidden, x.stride(0), eps,
        torch.get_num_threads(),
    )  # fmt: skip
    return out
