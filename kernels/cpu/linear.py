"""Matrix products on the CPU: `x @ matrix` in C, the matrix packed in panels of columns.

Each element is one chain of fused operations over `in_features`, in order: a row's result does not
depend on the rows beside it, their number or the threads. So rows need no padding, and one row
costs what one row must.

SmolLM2-135M's products of all 30 layers / of the head, beside `torch.mm` on `[in, out]` matrices,
ms, 1 thread, AVX-512, best of 8 on a shared machine; torch must pad 1 to 3 rows to 4 for bits that
do not depend on the batch:

    rows          1          2          4          8         16         32         128
    torch   33 / 8.1  51 / 13  54 / 15  62 / 18  76 / 24  98 / 31  310 / 111
    here    36 / 9.4  -        38 / 9.7  37 / 9.6  -        70 / 19  207 / 55
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.library import loaded_library


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """A float32 matrix `[in_features, out_features]` as `linear_c` reads it."""

    panels: Tensor  # [num_panels, in_features, panel_width]; columns past the last are zero
    out_features: int

    @property
    def dtype(self) -> torch.dtype:
        return self.panels.dtype

    @property
    def device(self) -> torch.device:
        return self.panels.device

    def columns(self, indices: Tensor) -> Tensor:
        """`[num_indices, in_features]`: the columns at `indices` (int64), as rows."""
        width = self.panels.shape[2]
        panel = torch.div(indices, width, rounding_mode="floor")
        return self.panels[panel, :, indices % width]

    def unpack(self) -> Tensor:
        """A new `[in_features, out_features]`."""
        return self.panels.transpose(0, 1).flatten(1)[:, : self.out_features].contiguous()


def pack(matrix: Tensor) -> PackedMatrix:
    """Copy `matrix` `[in_features, out_features]`, float32 on the CPU.

    Raises:
        RuntimeError: the C kernels could not be built.
    """
    width = int(loaded_library().turnout_panel_width())
    in_features, out_features = matrix.shape
    num_panels = -(-out_features // width)
    panels = matrix.new_zeros(num_panels, in_features, width)
    whole = out_features // width
    columns = matrix[:, : whole * width].view(in_features, whole, width)
    panels[:whole] = columns.transpose(0, 1)
    panels[whole:, :, : out_features - whole * width] = matrix[:, whole * width :]
    return PackedMatrix(panels=panels, out_features=out_features)


def linear_c(x: Tensor, matrix: PackedMatrix) -> Tensor:
    """x `[num_rows, in_features]` float32, a row's elements side by side -> a new `[num_rows,
    out_features]`.
    """
    num_rows, in_features = x.shape
    out = x.new_empty(num_rows, matrix.out_features)
    loaded_library().turnout_linear(
        out.data_ptr(), x.data_ptr(), matrix.panels.data_ptr(), num_rows, in_features,
        matrix.out_features, x.stride(0), torch.get_num_threads(),
    )  # fmt: skip
    return out
