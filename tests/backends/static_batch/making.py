"""What the static engine's tests share: one over the stub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backends.static_batch.config import StaticBatchConfig
from backends.static_batch.engine import StaticBatchEngine
from tests.native_engine.harness import Transcript
from tests.native_engine.stub_runner import StubRunner


def make_config(
    *,
    max_batch_size: int = 3,
    batch_timeout_s: float = 0.0,
    max_input_tokens: int = 20,
    max_new_tokens: int = 12,
    max_waiting: int = 8,
) -> StaticBatchConfig:
    return StaticBatchConfig(
        model=Path("stub"),
        max_batch_size=max_batch_size,
        batch_timeout_s=batch_timeout_s,
        max_input_tokens=max_input_tokens,
        max_new_tokens=max_new_tokens,
        max_waiting=max_waiting,
    )


def make_static(
    config: StaticBatchConfig,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    block_size: int = 4,
    max_model_len: int = 200,
) -> tuple[StaticBatchEngine, StubRunner]:
    """With a runner that has as many blocks as a full batch takes, and no more."""
    region = config.region_blocks(max_model_len, block_size)
    runner = StubRunner(
        num_blocks=config.max_batch_size * region,
        block_size=block_size,
        max_model_len=max_model_len,
    )
    return StaticBatchEngine(runner, config, clock=clock), runner


def drain_static(
    engine: StaticBatchEngine, transcript: Transcript | None = None, *, limit: int = 1000
) -> Transcript:
    """Step until idle, checking the books; `limit` steps are never needed."""
    transcript = transcript or Transcript()
    for _ in range(limit):
        if not engine.has_work:
            break
        transcript.record(engine.step())
        engine.check_invariants()
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.info.num_blocks
    return transcript
