"""Which engines there are, by name. Each is imported only when a configuration asks for it.

The one place that names concrete backends, and none of them is imported before it is opened.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from backends.base import Backend
from backends.spec import BackendConfigError, BackendSpec

__all__ = [
    "BackendConfigError",
    "BackendSpec",
    "has_engine_process",
    "host_command",
    "needs_model_files",
    "needs_one_gateway",
    "open_backend",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """`module:function`s: opening the backend, and the command line of its engine process."""

    open_backend: str
    host_command: str | None = None
    needs_model_files: bool = True  # or `model` is a name that means nothing here, if anything
    needs_one_gateway: bool = False  # it is a thing inside the gateway that there can be one of


_ENGINES = {
    "echo": _Entry(open_backend="backends.echo:open_backend", needs_model_files=False),
    "fastchat": _Entry(
        open_backend="backends.static_batch.fastchat.remote:open_backend",
        needs_model_files=False,
        needs_one_gateway=True,
    ),
    "native": _Entry(
        open_backend="backends.native:open_backend", host_command="backends.native:host_command"
    ),
    "priority_batcher": _Entry(
        open_backend="backends.priority_batcher.backend:open_backend",
        host_command="backends.priority_batcher.backend:host_command",
    ),
    "static_batch": _Entry(
        open_backend="backends.static_batch.backend:open_backend",
        host_command="backends.static_batch.backend:host_command",
    ),
}


async def open_backend(spec: BackendSpec) -> Backend:
    """Make the backend, in the loop that will use it. It may still be starting.

    Raises:
        BackendConfigError: unknown engine or option, or a value out of range.
        ModelFileError: the model's files cannot be used.
    """
    opener = cast(Callable[[BackendSpec], Awaitable[Backend]], _load(_entry(spec).open_backend))
    return await opener(spec)


def host_command(spec: BackendSpec) -> tuple[str, ...] | None:
    """The command line of the backend's engine process; None if it needs none.

    Raises:
        BackendConfigError: as `open_backend`.
    """
    path = _entry(spec).host_command
    if path is None:
        return None
    return cast(Callable[[BackendSpec], tuple[str, ...]], _load(path))(spec)


def needs_model_files(engine: str) -> bool:
    """Whether an engine reads its model from this machine's disk; an unknown one would."""
    entry = _ENGINES.get(engine)
    return entry is None or entry.needs_model_files


def has_engine_process(engine: str) -> bool:
    """Whether gateway processes share one engine beside them; or each has a backend of its own."""
    entry = _ENGINES.get(engine)
    return entry is not None and entry.host_command is not None


def needs_one_gateway(engine: str) -> bool:
    """Whether a second gateway process could not open it."""
    entry = _ENGINES.get(engine)
    return entry is not None and entry.needs_one_gateway


def _entry(spec: BackendSpec) -> _Entry:
    entry = _ENGINES.get(spec.engine)
    if entry is None:
        close = difflib.get_close_matches(spec.engine, _ENGINES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_ENGINES)}"
        raise BackendConfigError(f"{spec.name}: no engine is named {spec.engine!r}; {hint}")
    return entry


def _load(path: str) -> object:
    module, _, function = path.partition(":")
    return cast(object, getattr(importlib.import_module(module), function))
