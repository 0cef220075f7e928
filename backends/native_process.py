"""The native engine's side of its process: only `backends.host` imports this, and it loads torch.

Knows no sockets; `backends.native` is the gateway's side.
"""

from __future__ import annotations

import time

from backends.native import NATIVE
from backends.spec import OptionValue
from native_engine.engine import Engine
from native_engine.model_runner import build_runner


def open_engine(options: dict[str, OptionValue]) -> Engine:
    """Load the model at the path `options["model"]`.

    Raises:
        BackendConfigError: an option is unknown or out of range.
        EngineError: the model's files cannot be used, or this machine cannot hold it.
    """
    config = NATIVE.process_config(options)
    return Engine(build_runner(config), config, clock=time.monotonic)
