"""Deleting records that are older than the operator wants to keep. Knows no SQL.

A few at a time, so that nobody waits long for the database; several processes may do it at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

BATCH_RECORDS = 1000
"""In one transaction, which holds the database for 5 ms."""

PAUSE_S = 0.1
"""Between two of them, for others to write."""

PERIOD_S = 600.0
"""Between two rounds: records live up to this much longer."""


class Shedding(Protocol):
    """What old records can be deleted from."""

    async def delete_before(self, time_s: float, *, limit: int) -> int: ...


async def delete_old(
    store: Shedding,
    *,
    keep_s: float,
    wall_clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Delete what ended more than `keep_s` ago, round after round, until cancelled."""
    while True:
        pause_s = PERIOD_S
        try:
            num_deleted = await store.delete_before(wall_clock() - keep_s, limit=BATCH_RECORDS)
            if num_deleted == BATCH_RECORDS:
                pause_s = PAUSE_S
        except Exception:  # a background task's door: the next round may succeed
            logger.exception("cannot delete old usage records; the next try is in %s s", pause_s)
        await sleep(pause_s)
