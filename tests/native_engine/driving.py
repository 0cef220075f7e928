"""Drives a `ModelRunner` by hand: prefill in chunks, then decode, all sequences together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from native_engine.model_runner import ModelRunner
from native_engine.types import (
    SampledToken,
    SamplingParams,
    ScheduledSequence,
    StepBatch,
    TokenHistory,
)

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass
class DrivenSequence:
    """A prompt, the blocks it lies in, and what came of it so far."""

    prompt: Sequence[int]
    num_tokens: int
    sampling: SamplingParams = GREEDY
    chunk: int = 1_000
    block_table: Sequence[int] = ()
    computed: int = 0
    outputs: list[SampledToken] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for token in self.outputs]

    @property
    def is_done(self) -> bool:
        return len(self.outputs) == self.num_tokens

    def scheduled(self) -> ScheduledSequence:
        known = [*self.prompt, *self.token_ids]
        stop = min(len(known), self.computed + self.chunk)
        return ScheduledSequence(
            request_id="",
            token_ids=known[self.computed : stop],
            start=self.computed,
            block_table=self.block_table,
            sampling=self.sampling,
            sample=stop == len(known),
            history=TokenHistory(token_ids=known, num_prompt_tokens=len(self.prompt)),
        )


def drive(runner: ModelRunner, sequences: Sequence[DrivenSequence]) -> None:
    """Run them together to their ends, each in blocks of its own from all over the cache."""
    free = list(range(runner.num_blocks))
    random.Random(0).shuffle(free)
    for sequence in sequences:
        size = len(sequence.prompt) + sequence.num_tokens
        sequence.block_table = [free.pop() for _ in range(-(-size // runner.block_size))]
    while running := [sequence for sequence in sequences if not sequence.is_done]:
        scheduled = [sequence.scheduled() for sequence in running]
        results = runner.execute(StepBatch(sequences=tuple(scheduled)))
        for sequence, share, result in zip(running, scheduled, results, strict=True):
            sequence.computed += len(share.token_ids)
            sequence.outputs += result.tokens
