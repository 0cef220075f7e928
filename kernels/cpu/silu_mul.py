"""The gated activation on the CPU, in C. A row's bits do not depend on the others."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.library import loaded_library, require_rows


def silu_mul_c(gate_up: Tensor) -> Tensor:
    """gate_up `[num_tokens, 2 * intermediate]`. Returns a new `[num_tokens, intermediate]`.

    Raises:
        ValueError: it is not float32, or a row's elements do not lie side by side.
    """
    require_rows("silu_mul", gate_up)
    num_tokens, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_tokens, intermediate)
    loaded_library().turnout_silu_mul(
        out.data_ptr(), gate_up.data_ptr(), num_tokens, intermediate, gate_up.stride(0),
        torch.get_num_threads(),
    )  # fmt: skip
    return out
