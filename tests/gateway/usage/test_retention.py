"""Old records go, round after round, also after a failure."""

from __future__ import annotations

import asyncio

from gateway.usage.retention import BATCH_RECORDS, PAUSE_S, PERIOD_S, delete_old
from gateway.usage.schema import UsageError
from tests.clock import FakeClock


class Heap:
    """So many old records; the first look at them fails."""

    def __init__(self, num_old: int) -> None:
        self.num_old = num_old
        self.asked: list[float] = []

    async def delete_before(self, time_s: float, *, limit: int) -> int:
        self.asked.append(time_s)
        if len(self.asked) == 1:
            raise UsageError("the database is locked")
        num_deleted = min(self.num_old, limit)
        self.num_old -= num_deleted
        return num_deleted


async def test_deletes_in_batches_with_pauses_and_then_looks_now_and_then() -> None:
    clock, heap = FakeClock(1_000_000.0), Heap(2 * BATCH_RECORDS + 1)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    deleting = asyncio.create_task(delete_old(heap, keep_s=1000.0, wall_clock=clock, sleep=sleep))
    await asyncio.wait([deleting])
    assert deleting.cancelled()
    assert pauses == [PERIOD_S, PAUSE_S, PAUSE_S, PERIOD_S, PERIOD_S]
    assert heap.num_old == 0
    assert heap.asked[0] == 1_000_000.0 - 1000.0
