"""The native engine's side of its process: only `backends.host` imports this, and it loads torch.

Knows no sockets; `backends.native` is the gateway's side.
"""

from __future__ import annotations

import time
from pathlib import Path

from backends.native import read_engine_config
from backends.spec import OptionValue
from backends.text.tokenizer import load_tokenizer
from native_engine.engine import Engine
from native_engine.model_runner import build_runner


def open_engine(options: dict[str, OptionValue]) -> Engine:
    """Load the model at the path `options["model"]`.

    The tokenizer is read for the number of its ids alone: logits can have more rows than there are
    ids, and none of those must ever be sampled.

    Raises:
        BackendConfigError: an option is unknown or out of range.
        EngineError: the model's files cannot be used, or this machine cannot hold it.
    """
    others = {name: value for name, value in options.items() if name != "model"}
    model_path = Path(str(options["model"]))
    config = read_engine_config(
        others,
        model_path=model_path,
        where="native",
        num_token_ids=load_tokenizer(model_path).num_token_ids,
    )
    return Engine(build_runner(config), config, clock=time.monotonic)
