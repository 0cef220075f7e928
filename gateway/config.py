"""The process's own settings. The one place where the gateway reads its environment.

What is served to whom is the policy file's business, not ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, each from the environment variable named beside it."""

    home: Path = Path(".turnout")  # TURNOUT_HOME: databases, secrets, models
    host: str = "127.0.0.1"  # TURNOUT_HOST
    port: int = 8000  # TURNOUT_PORT
    policy: Path = Path("policies/default.yaml")  # TURNOUT_POLICY
    body_limit_bytes: int = 2_000_000  # TURNOUT_BODY_LIMIT_BYTES
    drain_timeout_s: float = 30.0  # TURNOUT_DRAIN_TIMEOUT_S


class ConfigError(Exception):
    """A setting that cannot be used; the message names the variable."""


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment; unset and empty variables mean the default.

    Raises:
        ConfigError: a variable does not hold what it should.
    """
    defaults = Settings()
    return Settings(
        home=_read(environ, "TURNOUT_HOME", Path, defaults.home),
        host=_read(environ, "TURNOUT_HOST", str, defaults.host),
        port=_read(environ, "TURNOUT_PORT", int, defaults.port),
        policy=_read(environ, "TURNOUT_POLICY", Path, defaults.policy),
        body_limit_bytes=_read(environ, "TURNOUT_BODY_LIMIT_BYTES", int, defaults.body_limit_bytes),
        drain_timeout_s=_read(environ, "TURNOUT_DRAIN_TIMEOUT_S", float, defaults.drain_timeout_s),
    )


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where databases, secrets and models live. It may not exist yet."""
    return load_settings(environ).home


def _read(
    environ: Mapping[str, str], name: str, convert: Callable[[str], _Value], default: _Value
) -> _Value:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return convert(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a number; the default is {default}") from None
