"""All that tests read of the engine's insides, or do to them, behind its back."""

from __future__ import annotations

from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner
from native_engine.models.decoder import Decoder
from native_engine.sequence import Sequence


def running(engine: Engine) -> list[Sequence]:
    """Those that hold blocks, the one that gives them up last first."""
    return list(engine._scheduler.running)


def in_line(engine: Engine) -> list[Sequence]:
    """Those that wait, but for the ones that stand aside to be forked."""
    lines = engine._scheduler.waiting._classes
    return [
        sequence
        for priority in sorted(lines, reverse=True)
        for queue in lines[priority].queues.values()
        for sequence in queue
    ]


def heads(engine: Engine) -> dict[int, Sequence]:
    """Who has become the head of its class and waits still, by priority."""
    lines = engine._scheduler.waiting._classes
    return {priority: line.head for priority, line in lines.items() if line.head is not None}


def preempt(engine: Engine, sequence: Sequence) -> None:
    """Between two steps, as the scheduler does when it runs out of blocks."""
    engine._scheduler._preempt(sequence)


def lost_blocks(engine: Engine) -> set[int]:
    """Those that no sequence holds and nothing in the prefix cache names."""
    blocks = engine._scheduler._block_manager
    lost = set(range(blocks.num_blocks)).difference(blocks._blocks.values())
    return lost.difference(*(sequence.block_table for sequence in running(engine)))


def decoder(runner: ModelRunner) -> Decoder:
    """The model it runs."""
    return runner._model


def another_runner(runner: ModelRunner, *, num_blocks: int, block_size: int) -> ModelRunner:
    """Over the same weights, with a KV cache of its own; the weights serve one at a time."""
    return ModelRunner(
        runner._model,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=runner.max_model_len,
        vocab_size=runner.vocab_size,
        product=runner._product,
    )
