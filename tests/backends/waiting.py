"""Waiting for what another process does: bounded polling, never a fixed sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return as soon as `holds()`; TimeoutError if that takes too long."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
