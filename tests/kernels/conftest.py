"""Without a GPU the Triton kernels run under Triton's interpreter, which reads this at import.

Triton is imported by the first kernel that is launched, so setting it at collection is early
enough; nothing else here uses Triton.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
