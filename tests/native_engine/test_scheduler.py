from __future__ import annotations

import pytest

from native_engine.block_manager import BlockManager
from native_engine.output_lengths import ENOUGH
from native_engine.prefix_hash import root_hash
from native_engine.scheduler import ScheduledStep, Scheduler
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import SamplingParams


class Bench:
    """A scheduler driven by hand: every sampled sequence gets token 0."""

    def __init__(
        self,
        *,
        num_blocks: int = 32,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 8,
        max_bypass: int = 0,
        aging_s: float = 10.0,
        target_itl_s: float = 0.0,
    ) -> None:
        self.blocks = BlockManager(num_blocks=num_blocks, block_size=block_size)
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_bypass=max_bypass,
            aging_s=aging_s,
            target_itl_s=target_itl_s,
        )
        for _ in range(ENOUGH):  # outputs are expected to be short, so that blocks do run out
            self.scheduler.output_lengths.record_end("", 1)
        self._arrivals = 0

    def add(self, request_id: str, num_prompt_tokens: int) -> Sequence:
        sequence = Sequence(
            request_id=request_id,
            sampling=SamplingParams(max_tokens=1000),
            arrival=self._arrivals,
            added_s=0.0,
            token_ids=[1] * num_prompt_tokens,
            num_prompt_tokens=num_prompt_tokens,
            max_num_tokens=1000,
            prefix_hashes=[root_hash("model", request_id)],  # nobody shares
        )
        self._arrivals += 1
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Schedule and "compute" one step. Returns tokens per request, in batch order."""
        step = self.scheduler.schedule(0.0)
        self.scheduler.check_invariants()
        complete(step)
        return {share.request_id: len(share.token_ids) for share in step.shares}


def complete(step: ScheduledStep) -> None:
    for sequence, share in zip(step.sequences, step.shares, strict=True):
        sequence.num_computed_tokens += len(share.token_ids)
        if share.sample:
            sequence.token_ids.append(0)


def test_mixes_a_chunk_of_prefill_behind_the_decodes() -> None:
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", 3)
    bench.add("b", 12)
    assert bench.step() == {"a": 3, "b": 5}
    step = bench.scheduler.schedule(0.0)
    assert [(s.request_id, s.start, len(s.token_ids), s.sample) for s in step.shares] == [
        ("a", 3, 1, True),
        ("b", 5, 7, True),
    ]


def test_samples_only_the_last_chunk_of_a_prompt() -> None:
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", 17)
    samples = []
    for _ in range(4):
        step = bench.scheduler.schedule(0.0)
        samples += [share.sample for share in step.shares]
        complete(step)
    assert samples == [False, False, True, True]


def test_goes_on_with_a_running_prefill_before_it_admits_another() -> None:
    bench = Bench(max_num_batched_tokens=8)
    bench.add("a", 10)
    bench.add("b", 10)
    assert [bench.step() for _ in range(3)] == [{"a": 8}, {"a": 2, "b": 6}, {"a": 1, "b": 4}]


def test_admits_in_order_of_arrival_and_lets_nobody_overtake() -> None:
    bench = Bench(num_blocks=4, block_size=4, max_num_batched_tokens=100)
    bench.add("a", 8)
    large, small = bench.add("large", 9), bench.add("small", 1)
    assert bench.step() == {"a": 8}
    assert [large.status, small.status] == [SequenceStatus.WAITING] * 2


def test_keeps_one_block_to_spare_when_it_admits() -> None:
    bench = Bench(num_blocks=4, block_size=4)
    bench.add("a", 4)
    waits = bench.add("waits", 12)
    bench.step()
    assert waits.status is SequenceStatus.WAITING
    assert bench.blocks.num_free_blocks == 3


def test_never_runs_more_than_max_num_seqs() -> None:
    bench = Bench(max_num_seqs=2, max_num_batched_tokens=100)
    for name in "abc":
        bench.add(name, 2)
    assert bench.step() == {"a": 2, "b": 2}
    bench.scheduler.finish(bench.scheduler.running[0])
    assert bench.step() == {"b": 1, "c": 2}


def test_takes_a_block_when_a_decode_outgrows_its_last() -> None:
    bench = Bench(block_size=4)
    sequence = bench.add("a", 4)
    bench.step()
    assert len(sequence.block_table) == 1
    bench.step()
    assert len(sequence.block_table) == 2


def crowded() -> tuple[Bench, list[Sequence]]:
    """Three prefilled sequences: in the next step two of them need a block, and one is free."""
    bench = Bench(num_blocks=7, block_size=4, max_num_batched_tokens=100)
    prompts = {"old": 7, "middle": 8, "new": 8}
    sequences = [bench.add(name, length) for name, length in prompts.items()]
    bench.step()
    return bench, sequences


def test_preempts_the_newest_and_admits_nobody_in_that_step() -> None:
    bench, (old, middle, new) = crowded()
    bench.add("later", 1)
    assert bench.step() == {"old": 1, "middle": 1}
    assert new.status is SequenceStatus.WAITING
    assert (new.num_computed_tokens, new.block_table, new.num_preemptions) == (0, [], 1)
    assert len(new.token_ids) == 9, "its output stays"
    assert [s.request_id for s in bench.scheduler.waiting] == ["new", "later"]
    assert [len(s.block_table) for s in (old, middle)] == [2, 3]


def test_spares_one_preempted_before_when_there_is_another() -> None:
    bench, (old, middle, new) = crowded()
    new.num_preemptions = 1
    assert bench.step() == {"old": 1, "new": 1}
    assert middle.status is SequenceStatus.WAITING
    assert old.num_preemptions == 0


def test_never_preempts_the_oldest_however_often_the_others_were() -> None:
    bench, (old, middle, new) = crowded()
    middle.num_preemptions = new.num_preemptions = 9
    assert bench.step() == {"old": 1, "middle": 1}
    assert old.status is SequenceStatus.RUNNING


def test_blocks_taken_from_one_are_not_for_newcomers_in_the_same_step() -> None:
    """The small one gives way to the old, then the big one to nobody: now the small one fits."""
    bench = Bench(num_blocks=7, block_size=4, max_num_batched_tokens=100)
    prompts = {"old": 7, "small": 1, "big": 7, "filler": 4}
    sequences = [bench.add(name, length) for name, length in prompts.items()]
    _, _, big, filler = sequences
    bench.step()
    big.num_preemptions, filler.num_preemptions = 1, 9
    bench.step()
    assert bench.step() == {"old": 1, "filler": 1}
    for sequence in sequences:
        sequence.max_num_tokens = len(sequence.token_ids) + 1  # no more is expected of anyone
    assert bench.step() == {"old": 1, "filler": 1, "small": 3}


def test_a_preempted_sequence_comes_back_whole_and_first() -> None:
    bench = Bench(num_blocks=5, block_size=4, max_num_batched_tokens=100)
    old, new = bench.add("old", 8), bench.add("new", 4)
    for _ in range(2):
        bench.step()
    bench.add("later", 1)
    while new.status is SequenceStatus.RUNNING:
        bench.step()
    known = len(new.token_ids)
    while bench.blocks.num_free_blocks <= bench.blocks.blocks_for(known):
        assert list(bench.step()) == ["old"]
        if len(old.token_ids) == 16:
            bench.scheduler.finish(old)
    assert bench.step() == {"new": known, "later": 1}
    assert bench.scheduler.running[0] is new


def test_finishing_twice_is_once() -> None:
    """SGLang #6888: one way out, so that nothing is freed twice or by two."""
    bench = Bench()
    sequence = bench.add("a", 5)
    bench.step()
    bench.scheduler.finish(sequence)
    bench.scheduler.finish(sequence)
    bench.scheduler.check_invariants()
    assert bench.blocks.num_free_blocks == 32


def test_refuses_a_budget_that_would_let_a_decode_wait() -> None:
    with pytest.raises(ValueError, match=r"max_num_seqs \(5\).*max_num_batched_tokens \(4\)"):
        Bench(max_num_seqs=5, max_num_batched_tokens=4)


def test_check_finds_a_waiting_sequence_that_holds_blocks() -> None:
    bench = Bench()
    bench.blocks.allocate(bench.add("a", 5), 1)
    with pytest.raises(AssertionError, match="a waiter's blocks"):
        bench.scheduler.check_invariants()
