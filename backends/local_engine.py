"""What the gateway's side of every local engine is made of: opening it, and its process's command.

An engine differs in its options alone: those of its `native_engine.config.RunnerConfig`; for how
long to wait for its process, of `backends.client.Patience`; and `prefix_cache`, if it has one.
Needs no torch, and knows no engine by name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Generic, Literal, TypeVar

from backends.client import EngineClient, Patience
from backends.local import LocalBackend
from backends.spec import BackendConfigError, BackendSpec, Options, OptionValue, read_options
from backends.text.tokenizer import load_tokenizer
from native_engine.config import RunnerConfig

Config = TypeVar("Config", bound=RunnerConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheOptions:
    """Who may share the KV blocks of prompts that begin alike."""

    prefix_cache: Literal["tenant", "shared", "off"] = "tenant"


class LocalEngine(Generic[Config]):
    """One kind of engine, by its name in `backends.host.ENGINES` and the type of its options."""

    def __init__(self, name: str, config: type[Config]) -> None:
        self._name = name
        self._config = config
        self._has_prefix_cache = "prefix_caching" in {field.name for field in fields(config)}

    async def open_backend(self, spec: BackendSpec) -> LocalBackend:
        """Connect to the engine process of `spec`, which may still be starting.

        Raises:
            BackendConfigError: an option is unknown or out of range, or a path is missing.
            ModelFileError: the model has no tokenizer that can be used.
        """
        patience, options = _take(Patience, spec.options, where=spec.name)
        prefixes, _ = self._take_prefixes(options, where=spec.name)
        model_path, socket_path = self._paths(spec)
        tokenizer = await asyncio.to_thread(load_tokenizer, model_path)
        return LocalBackend(
            spec.name,
            EngineClient(socket_path, patience=patience),
            tokenizer,
            now=lambda: datetime.now().astimezone(),
            sharing="shared" if prefixes.prefix_cache == "shared" else "tenant",
        )

    def host_command(self, spec: BackendSpec) -> tuple[str, ...]:
        """The command line of the engine process.

        Raises:
            BackendConfigError: as `open_backend`.
        """
        _, options = _take(Patience, spec.options, where=spec.name)
        model_path, socket_path = self._paths(spec)
        self.read_config(options, model_path=model_path, where=spec.name)
        return (
            sys.executable,
            "-m",
            "backends.host",
            f"--socket={socket_path}",
            f"--engine={self._name}",
            f"--options={json.dumps({**options, 'model': str(model_path)})}",
        )

    def read_config(
        self,
        options: Mapping[str, OptionValue],
        *,
        model_path: Path,
        where: str,
        num_token_ids: int = 0,
    ) -> Config:
        """The engine's own options, and `prefix_cache`. Raises BackendConfigError."""
        prefixes, others = self._take_prefixes(options, where=where)
        given: dict[str, object] = {"model": model_path, "num_token_ids": num_token_ids}
        if self._has_prefix_cache:
            given["prefix_caching"] = prefixes.prefix_cache != "off"
        return read_options(self._config, others, where=where, given=given)

    def process_config(self, options: Mapping[str, OptionValue]) -> Config:
        """What `host_command` gave the process. `options["model"]` is a path.

        The tokenizer is read for the number of its ids alone: logits can have more rows than there
        are ids, and none of those must ever be sampled.

        Raises:
            BackendConfigError: an option is unknown or out of range.
            ModelFileError: the model has no tokenizer that can be used.
        """
        others = {name: value for name, value in options.items() if name != "model"}
        model_path = Path(str(options["model"]))
        return self.read_config(
            others,
            model_path=model_path,
            where=self._name,
            num_token_ids=load_tokenizer(model_path).num_token_ids,
        )

    def _take_prefixes(
        self, options: Mapping[str, OptionValue], *, where: str
    ) -> tuple[PrefixCacheOptions, dict[str, OptionValue]]:
        if self._has_prefix_cache:
            return _take(PrefixCacheOptions, options, where=where)
        return PrefixCacheOptions(), dict(options)

    def _paths(self, spec: BackendSpec) -> tuple[Path, Path]:
        if spec.model_path is None or spec.socket_path is None:
            raise BackendConfigError(
                f"{spec.name}: engine {self._name!r} needs a model and a socket path"
            )
        return spec.model_path, spec.socket_path


def _take(
    kind: type[Options], options: Mapping[str, OptionValue], *, where: str
) -> tuple[Options, dict[str, OptionValue]]:
    """The options that are fields of `kind`, read, and the others."""
    names = {field.name for field in fields(kind)}
    mine = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return read_options(kind, mine, where=where), others
