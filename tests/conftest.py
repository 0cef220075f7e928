"""Without a GPU the Triton kernels run under Triton's interpreter, which reads this at import.

Here, as the first to be loaded of all tests: transformers imports Triton as well, wherever it is
used.
"""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
