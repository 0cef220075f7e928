"""What each local engine holds and computes for nothing, on one workload.

The engines run over a runner that computes nothing, in this process, for as many clients as the
benchmark has. After each step the blocks in use are held against the tokens that are computed of
requests which have not ended; at the end, the rows computed against those that somebody needed.
Exact, and the same on every machine.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from backends.priority_batcher.batcher import PriorityBatcher
from backends.priority_batcher.config import PriorityBatcherConfig
from backends.static_batch.config import StaticBatchConfig
from backends.static_batch.engine import StaticBatchEngine
from benchmarks.backends_workload import Job
from benchmarks.bench_prefix_cache import NullRunner
from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.types import (
    EngineRequest,
    SamplingParams,
    SequenceResult,
    StepBatch,
    SteppedEngine,
)

MODEL = Path("bench")
BATCH_SIZE = 8  # of the static engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Of one engine."""

    empty_slots: float  # of the slots of blocks in use, those without a token of a live request
    idle_rows: float  # of the rows computed, those that nobody needed


class WatchedRunner(NullRunner):
    """Remembers how many tokens are computed of each request, and how many rows in all."""

    max_model_len = 2048  # SmolLM2's

    def __init__(self, num_blocks: int = 0) -> None:
        self.num_blocks = num_blocks or NullRunner.num_blocks
        self.computed: dict[str, int] = {}
        self.num_rows = 0

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        for share in batch.sequences:
            self.num_rows += len(share.token_ids)
            self.computed[share.request_id] = share.start + len(share.token_ids)
        return super().execute(batch)


def waste_of(name: str, workload: list[Job], *, num_clients: int) -> Waste:
    """Of `native`, `priority` or `static`."""
    engine, runner = _make(name, num_clients)
    upcoming = iter(workload)
    living: set[str] = set()
    shares: list[float] = []
    while True:
        while len(living) < num_clients and (job := next(upcoming, None)):
            engine.add(_request(job))
            living.add(str(job.number))
        if not living:
            break
        outputs = engine.step()
        living -= {output.request_id for output in outputs if output.finish_reason is not None}
        stats = engine.stats()
        slots = (stats.num_blocks - stats.num_free_blocks) * runner.block_size
        if slots:
            held = sum(runner.computed.get(request_id, 0) for request_id in living)
            shares.append(1 - held / slots)
    needed = sum(job.prompt_tokens + job.max_tokens - 1 for job in workload)
    return Waste(empty_slots=statistics.fmean(shares), idle_rows=1 - needed / runner.num_rows)


def _make(name: str, num_clients: int) -> tuple[SteppedEngine, WatchedRunner]:
    if name == "native":
        runner = WatchedRunner()
        native = EngineConfig(model=MODEL, max_num_seqs=num_clients, prefix_caching=False)
        return Engine(runner, native, clock=time.monotonic), runner
    if name == "priority":
        runner = WatchedRunner()
        batcher = PriorityBatcherConfig(model=MODEL, max_batch_size=16, prefix_caching=False)
        return PriorityBatcher(runner, batcher, clock=time.monotonic), runner
    static = StaticBatchConfig(model=MODEL, max_batch_size=BATCH_SIZE, batch_timeout_s=0.0)
    regions = BATCH_SIZE * static.region_blocks(WatchedRunner.max_model_len, NullRunner.block_size)
    runner = WatchedRunner(regions)
    return StaticBatchEngine(runner, static, clock=time.monotonic), runner


def _request(job: Job) -> EngineRequest:
    return EngineRequest(
        request_id=str(job.number),
        prompt_token_ids=(job.number, *[7] * (job.prompt_tokens - 1)),
        sampling=SamplingParams(max_tokens=job.max_tokens, temperature=0.0),
    )
