"""`turnout doctor`: says what is missing, and how to get it. Changes nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.config import OidcSettings, Settings, load_settings

if TYPE_CHECKING:
    from gateway.policy.model import Policy

NATIVE_PACKAGES = (
    "torch",
    "numpy",
    "tokenizers",
    "jinja2",
    "safetensors",
    "gguf",
    "zmq",
    "msgspec",
)
COMPILERS = ("cc", "gcc", "clang")
MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at. `remedy` is empty when all is well."""

    what: str
    state: str
    remedy: str = ""


def doctor() -> None:
    """Say what is missing for `turnout serve`, and how to get it."""
    settings = load_settings()
    num_missing = 0
    for finding in examine(settings):
        mark = "ok     " if not finding.remedy else "MISSING"
        num_missing += bool(finding.remedy)
        typer.echo(f"{mark} {finding.what}: {finding.state}")
        if finding.remedy:
            typer.echo(f"        -> {finding.remedy}")
    if num_missing:
        raise typer.Exit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at everything `turnout serve` needs, in the order it needs it."""
    yield _python()
    yield from (_package(name) for name in NATIVE_PACKAGES)
    yield _compiler()
    yield _home(settings.home)
    yield asyncio.run(_store(settings))
    if settings.oidc is not None:
        yield asyncio.run(_identity_provider(settings.oidc))
    yield from _policy_and_models(settings)
    yield _port(settings.host, settings.port)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    remedy = "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"
    return Finding(what="python", state=version, remedy=remedy)


def _package(name: str) -> Finding:
    found = importlib.util.find_spec(name) is not None
    remedy = "" if found else "run `make serve`, or pip install 'turnout[native]'"
    return Finding(what=f"package {name}", state="found" if found else "not found", remedy=remedy)


def _compiler() -> Finding:
    """Never missing: without one the engine runs, only slower."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    slow = "not found: the engine runs two to three times slower on a CPU; install gcc"
    return Finding(what="C compiler", state=found or slow)


def _home(home: Path) -> Finding:
    nearest = next(path for path in (home, *home.absolute().parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        remedy = f"make {nearest} writable, or set TURNOUT_HOME to a directory that is"
        return Finding(what="data directory", state=f"{home} cannot be written", remedy=remedy)
    disk = os.statvfs(nearest)
    free_bytes = disk.f_bavail * disk.f_frsize
    remedy = (
        "" if free_bytes >= MIN_FREE_BYTES else "free some space: models and counters live here"
    )
    return Finding(
        what="data directory", state=f"{home}, {free_bytes >> 20} MiB free", remedy=remedy
    )


async def _store(settings: Settings) -> Finding:
    # SQLite and redis-py are loaded only by commands that open a store
    from gateway.stores.base import StoreError
    from gateway.stores.opening import open_store

    what = "limit store"
    if settings.store.text == "sqlite" and not settings.home.joinpath("limits.db").exists():
        return Finding(what=what, state="sqlite, a file that `turnout serve` will make")
    try:
        store = await open_store(settings)
        try:
            await store.check()
        finally:
            await store.aclose()
    except StoreError as error:
        return Finding(what=what, state="does not answer", remedy=str(error))
    return Finding(what=what, state=f"{settings.store} answers")


async def _identity_provider(settings: OidcSettings) -> Finding:
    # httpx and cryptography are loaded only where there is a provider to ask
    from gateway.tenancy.oidc.provider import Provider, ProviderError

    what = f"identity provider {settings.issuer}"
    try:
        found = await Provider(settings).fetch()
    except ProviderError as error:
        return Finding(what=what, state="gives no keys", remedy=str(error))
    keys = ", ".join(f"{key.kid} ({'/'.join(key.algorithms)})" for key in found.keys.values())
    ignored = "".join(f"; ignored: {one}" for one in found.ignored)
    return Finding(what=what, state=f"signs with {keys}{ignored}")


def _policy_and_models(settings: Settings) -> Iterator[Finding]:
    # pydantic and PyYAML are imported only by commands that read a policy
    from backends.registry import needs_model_files
    from gateway.catalog import CatalogError, resolve_model
    from gateway.policy.load import PolicyError, load

    try:
        policy = load(settings.policy)
    except PolicyError as error:
        yield Finding(what="policy", state=f"{settings.policy} has errors", remedy=str(error))
        return
    yield Finding(what="policy", state=f"{settings.policy}, {len(policy.routes)} routes")
    yield _workers(settings, policy)
    for backend in policy.backends.values():
        if not needs_model_files(backend.engine):
            continue
        try:
            path = resolve_model(backend.model, settings.home)
        except CatalogError as error:
            yield Finding(what=f"model {backend.model}", state="not here", remedy=str(error))
        else:
            yield Finding(what=f"model {backend.model}", state=str(path))


def _workers(settings: Settings, policy: Policy) -> Finding:
    from gateway.launch import LaunchError, check_shareable  # the whole gateway

    remedy = ""
    try:
        check_shareable(settings, policy)
    except LaunchError as error:
        remedy = str(error)
    return Finding(what="gateway processes", state=str(settings.workers), remedy=remedy)


def _port(host: str, port: int) -> Finding:
    what = f"port {port} on {host}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            remedy = "stop what listens there, or set TURNOUT_PORT to another port"
            return Finding(what=what, state=f"not free: {error.strerror}", remedy=remedy)
    return Finding(what=what, state="free")
