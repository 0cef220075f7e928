"""The static-batch engine's side of its process: only `backends.host` imports this; it loads torch.

Knows no sockets; `backend` is the gateway's side.
"""

from __future__ import annotations

import time

from backends.spec import OptionValue
from backends.static_batch.backend import STATIC_BATCH
from backends.static_batch.engine import StaticBatchEngine
from native_engine.model_runner import build_runner


def open_engine(options: dict[str, OptionValue]) -> StaticBatchEngine:
    """Load the model at the path `options["model"]`.

    Raises:
        BackendConfigError: an option is unknown or out of range.
        EngineError: the model's files cannot be used, or this machine cannot hold it.
    """
    config = STATIC_BATCH.process_config(options)
    return StaticBatchEngine(build_runner(config), config, clock=time.monotonic)
