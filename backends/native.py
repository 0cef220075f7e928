"""The native engine as a backend: the gateway's side of it, which needs no torch.

`backends.native_process` is the other side.
"""

from __future__ import annotations

from backends.local_engine import LocalEngine
from native_engine.config import EngineConfig

NATIVE = LocalEngine("native", EngineConfig)

open_backend = NATIVE.open_backend
host_command = NATIVE.host_command
