"""On a tiny real model: every answer is, bit for bit, what the native engine gives it alone.

Greedy and seeded, with rules, log-probabilities and those of prompts, several choices, aborts
between and inside passes; over random pools, budgets, chunks, caches, and parts of answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backends.priority_batcher.batcher import PriorityBatcher
from native_engine.model_runner import ModelRunner
from tests.backends.priority_batcher.harness import admission_log, make_batcher
from tests.native_engine.peeking import another_runner
from tests.native_engine.random_schedules import (
    MAX_OUTPUT,
    MAX_PROMPT,
    MODELS,
    Arrival,
    InterruptibleRunner,
    RandomSchedules,
    tiny_runner,
)

NUM_SCHEDULES = 20


def batcher_over(
    runner: ModelRunner, choose: random.Random, *, chunking: bool
) -> tuple[PriorityBatcher, InterruptibleRunner]:
    """With blocks for any one request at least, and not for all of them."""
    block_size = choose.choice([8, 8, 16, 32])
    fewest = -(-(MAX_PROMPT + MAX_OUTPUT) // block_size)
    interruptible = InterruptibleRunner(
        another_runner(runner, num_blocks=fewest + choose.randrange(9), block_size=block_size)
    )
    batcher = make_batcher(
        interruptible,
        max_batch_prefill_tokens=choose.choice([4, 17, 40]) if chunking else 80,
        default_generation_length=choose.choice([3, 10, 1000]),
        waiting_served_ratio=choose.choice([0.0, 0.3, 1.2]),
        max_waiting_tokens=choose.choice([1, 5, 20]),
        max_batch_size=choose.choice([0, 0, 3]),
        prefix_caching=choose.random() < 0.7,
        chunking=chunking,
    )
    return batcher, interruptible


class Schedule:
    """Arrivals at random steps; what each yields is held against its answer alone."""

    def __init__(self, batcher: PriorityBatcher, runner: InterruptibleRunner) -> None:
        self.batcher = batcher
        self.runner = runner
        self.here: dict[str, Arrival] = {}
        self.tally: Counter[str] = Counter()

    def run(self, arrivals: Iterator[Arrival], choose: random.Random) -> None:
        step, coming = 0, next(arrivals, None)
        while coming is not None or self.here:
            while coming is not None and coming.at_step <= step:
                self.here[coming.request.request_id] = coming
                self.batcher.add(coming.request)
                coming = next(arrivals, None)
            for arrival in [a for a in self.here.values() if a.aborted_at == step]:
                if choose.random() < 0.5:
                    self.abort(arrival)
                else:
                    self.runner.interrupt = partial(self.abort, arrival)
            self.step()
            step += 1
        assert not self.batcher.has_work
        stats = self.batcher.stats()
        assert stats.num_free_blocks == stats.num_blocks
        self.tally["cached"] += stats.prefix_cache_hits

    def abort(self, arrival: Arrival) -> None:
        del self.here[arrival.request.request_id]
        self.batcher.abort(arrival.request.request_id)
        assert arrival.mismatch is None
        self.tally["aborted"] += 1

    def step(self) -> None:
        outputs = self.batcher.step()
        self.runner.interrupt = lambda: None
        self.batcher.check_invariants()
        for output in outputs:
            arrival = self.here[output.request_id]
            assert output.error is None
            if output.token is not None:
                arrival.tokens.append(output.token)
            if output.prompt_logprobs is not None:
                arrival.prompts.append(output.prompt_logprobs)
            arrival.reason = output.finish_reason
            if output.finish_reason is not None:
                del self.here[output.request_id]
                assert arrival.mismatch is None
                self.tally["answered"] += 1
                self.tally["asked about prompts"] += bool(arrival.prompts)


@pytest.mark.parametrize("chunking", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_every_answer_is_the_native_engine_s_bit_for_bit(
    tmp_path: Path, model: str, chunking: bool
) -> None:
    """E-SEED, E-BATCH-INVARIANCE, E-ABORT-LAST-STEP, E-PREFIX-PROMPT-LOGPROBS."""
    runner = tiny_runner(model, tmp_path)
    schedules = RandomSchedules(runner)
    tally: Counter[str] = Counter()
    for seed in range(NUM_SCHEDULES):
        choose = random.Random(seed)
        schedule = Schedule(*batcher_over(runner, choose, chunking=chunking))
        arrivals = schedules.arrivals(choose)
        with admission_log() as log:
            schedule.run(iter(arrivals), choose)
        tally += schedule.tally
        tally["gone on"] += sum(len(names) for _, names in log) > len(arrivals)
    some = ("answered", "aborted", "cached", "asked about prompts", "gone on")
    assert min(tally[what] for what in some) > 5, tally
