"""The native engine as a backend: the gateway's side of it, which needs no torch.

Options are those of `native_engine.config.EngineConfig`; for how long to wait for the engine
process, of `backends.client.Patience`; and `prefix_cache`. `backends.native_process` is the other
side.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Literal

from backends.client import EngineClient, Patience
from backends.local import LocalBackend
from backends.spec import BackendConfigError, BackendSpec, Options, OptionValue, read_options
from backends.text.tokenizer import load_tokenizer
from native_engine.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheOptions:
    """Who may share the KV blocks of prompts that begin alike."""

    prefix_cache: Literal["tenant", "shared", "off"] = "tenant"


async def open_backend(spec: BackendSpec) -> LocalBackend:
    """Connect to the engine process of `spec`, which may still be starting.

    Raises:
        BackendConfigError: an option is unknown or out of range, or a path is missing.
        ModelFileError: the model has no tokenizer that can be used.
    """
    patience, options = _take(Patience, spec.options, where=spec.name)
    prefixes, _ = _take(PrefixCacheOptions, options, where=spec.name)
    model_path, socket_path = _paths(spec)
    tokenizer = await asyncio.to_thread(load_tokenizer, model_path)
    return LocalBackend(
        spec.name,
        EngineClient(socket_path, patience=patience),
        tokenizer,
        now=lambda: datetime.now().astimezone(),
        sharing="shared" if prefixes.prefix_cache == "shared" else "tenant",
    )


def host_command(spec: BackendSpec) -> tuple[str, ...]:
    """The command line of the engine process.

    Raises:
        BackendConfigError: as `open_backend`.
    """
    _, options = _take(Patience, spec.options, where=spec.name)
    model_path, socket_path = _paths(spec)
    read_engine_config(options, model_path=model_path, where=spec.name)
    return (
        sys.executable,
        "-m",
        "backends.host",
        f"--socket={socket_path}",
        "--engine=native",
        f"--options={json.dumps({**options, 'model': str(model_path)})}",
    )


def read_engine_config(
    options: Mapping[str, OptionValue], *, model_path: Path, where: str, num_token_ids: int = 0
) -> EngineConfig:
    """The engine's own options, and `prefix_cache`. Raises BackendConfigError."""
    prefixes, others = _take(PrefixCacheOptions, options, where=where)
    given = {
        "model": model_path,
        "num_token_ids": num_token_ids,
        "prefix_caching": prefixes.prefix_cache != "off",
    }
    return read_options(EngineConfig, others, where=where, given=given)


def _take(
    kind: type[Options], options: Mapping[str, OptionValue], *, where: str
) -> tuple[Options, dict[str, OptionValue]]:
    """The options that are fields of `kind`, read, and the others."""
    names = {field.name for field in fields(kind)}
    mine = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return read_options(kind, mine, where=where), others


def _paths(spec: BackendSpec) -> tuple[Path, Path]:
    if spec.model_path is None or spec.socket_path is None:
        raise BackendConfigError(f"{spec.name}: the native engine needs a model and a socket path")
    return spec.model_path, spec.socket_path
