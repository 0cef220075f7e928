"""Which limit store the settings choose. Loads redis-py only for those who use it."""

from __future__ import annotations

import time

from gateway.config import Settings
from gateway.stores.base import LimitStore, StoreError
from gateway.stores.memory import MemoryStore
from gateway.stores.sqlite import SqliteStore


async def open_store(settings: Settings) -> LimitStore:
    """Open it. A server is not connected to yet: the store works as soon as the server does.

    Raises:
        StoreError: the store cannot be used as it is set up; the message says why.
    """
    if settings.store.is_url:
        return _open_redis(settings)
    if settings.store_password_file is not None:
        raise StoreError("TURNOUT_STORE_PASSWORD_FILE is of use with a server only; unset it")
    if settings.store.text == "memory":
        return MemoryStore(clock=time.monotonic)
    return await SqliteStore.open(settings.home / "limits.db", clock=time.monotonic)


def check_shared(settings: Settings, *, num_gateways: int) -> None:
    """Refuse a store that several gateway processes would each have of their own.

    Raises:
        StoreError: every tenant would be allowed `num_gateways` times its limits.
    """
    if settings.store.text == "memory" and num_gateways > 1:
        raise StoreError(
            f"TURNOUT_STORE=memory is not shared by {num_gateways} gateway processes: each would "
            "allow all of every limit; use sqlite on one host, or redis://host:port/db"
        )


def _open_redis(settings: Settings) -> LimitStore:
    try:
        from gateway.stores.redis import RedisStore  # an optional dependency, and 0.2 s to load
    except ImportError as error:
        raise StoreError(
            "TURNOUT_STORE names a Redis server, and the package redis is not installed: "
            "pip install 'turnout[redis]'"
        ) from error
    return RedisStore.open(settings.store.text, password=_password(settings))


def _password(settings: Settings) -> str | None:
    path = settings.store_password_file
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"TURNOUT_STORE_PASSWORD_FILE cannot be read: {error}") from error
