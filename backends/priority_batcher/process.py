"""The TGI-style engine's side of its process: only `backends.host` imports this; it loads torch.

Knows no sockets; `backends.priority_batcher.backend` is the gateway's side.
"""

from __future__ import annotations

import time

from backends.priority_batcher.backend import PRIORITY_BATCHER
from backends.priority_batcher.batcher import PriorityBatcher
from backends.spec import OptionValue
from native_engine.model_runner import build_runner


def open_engine(options: dict[str, OptionValue]) -> PriorityBatcher:
    """Load the model at the path `options["model"]`.

    Raises:
        BackendConfigError: an option is unknown or out of range.
        EngineError: the model's files cannot be used, or this machine cannot hold it.
    """
    config = PRIORITY_BATCHER.process_config(options)
    return PriorityBatcher(build_runner(config), config, clock=time.monotonic)
