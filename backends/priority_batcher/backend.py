"""The TGI-style engine as a backend: the gateway's side of it, which needs no torch.

`backends.priority_batcher.process` is the other side.
"""

from __future__ import annotations

from backends.local_engine import LocalEngine
from backends.priority_batcher.config import PriorityBatcherConfig

PRIORITY_BATCHER = LocalEngine("priority_batcher", PriorityBatcherConfig)

open_backend = PRIORITY_BATCHER.open_backend
host_command = PRIORITY_BATCHER.host_command
