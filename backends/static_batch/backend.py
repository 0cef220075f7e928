"""The static-batch engine as a backend: the gateway's side of it, which needs no torch.

`process` is the other side.
"""

from __future__ import annotations

from backends.local_engine import LocalEngine
from backends.static_batch.config import StaticBatchConfig

STATIC_BATCH = LocalEngine("static_batch", StaticBatchConfig)

open_backend = STATIC_BATCH.open_backend
host_command = STATIC_BATCH.host_command
