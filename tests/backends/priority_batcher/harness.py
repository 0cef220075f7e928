"""What the batcher's tests share: a batcher over a runner, and a log of whom it admits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backends.priority_batcher import batcher as module
from backends.priority_batcher.batcher import PriorityBatcher
from backends.priority_batcher.config import PriorityBatcherConfig
from native_engine.types import Runner
from tests.native_engine.harness import Transcript

Admitted = tuple[int, list[str]]  # iteration, request ids


def make_batcher(
    runner: Runner, *, clock: Callable[[], float] = lambda: 0.0, **options: Any
) -> PriorityBatcher:
    return PriorityBatcher(
        runner, PriorityBatcherConfig(model=Path("stub"), **options), clock=clock
    )


def drain(
    batcher: PriorityBatcher, transcript: Transcript | None = None, *, limit: int = 1000
) -> Transcript:
    """Step until idle, checking the books; `limit` steps are never needed."""
    transcript = transcript or Transcript()
    for _ in range(limit):
        if not batcher.has_work:
            break
        transcript.record(batcher.step())
        batcher.check_invariants()
    assert not batcher.has_work
    assert batcher.stats().num_free_blocks == batcher.info.num_blocks
    return transcript


class _Admissions(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.log: list[Admitted] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "iteration %d admits %s":
            assert isinstance(record.args, tuple)
            iteration, ids = record.args
            assert isinstance(iteration, int)
            assert isinstance(ids, list)
            self.log.append((iteration, ids))


@contextmanager
def admission_log() -> Iterator[list[Admitted]]:
    """What every batcher says of whom it admits, in the debug lines of its log."""
    handler, level = _Admissions(), module.logger.level
    module.logger.addHandler(handler)
    module.logger.setLevel(logging.DEBUG)
    yield handler.log
    module.logger.setLevel(level)
    module.logger.removeHandler(handler)
