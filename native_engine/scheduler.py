"""Which sequences compute which tokens in the next step, and who gives way when blocks run out.

Continuous batching (Orca, OSDI 2022) with chunked prefill under one token budget (Sarathi-Serve,
arXiv:2403.02310). Knows tokens and blocks; nothing of clocks, sampling or the device.

Why every request ends:

* A sequence is admitted when blocks for all its known tokens and one more are free (or the whole
  pool is), and gets them at once: a prefill never stops half way for want of blocks.
* Only growing takes blocks from others, and never from the oldest running sequence. Alone it
  always fits, as `max_num_tokens` never exceeds the pool. So each step brings the oldest further.
* `waiting` is in order of arrival and its head is never overtaken, so the oldest of all gets in.
* Preempting leaves fewer blocks free than the victim needs to come back: its own, less the one
  taken, against its own and one more. So two cannot push each other out step after step.
"""

from __future__ import annotations

import bisect
from collections import deque

from native_engine.block_manager import BlockManager
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import ScheduledSequence


class ScheduledStep:
    """A step being filled: the shares of the runner's batch, and the sequences they belong to."""

    __slots__ = ("budget", "sampled", "sequences", "shares")

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that may still be added
        self.shares: list[ScheduledSequence] = []
        self.sequences: list[Sequence] = []  # whose shares these are, in order
        self.sampled: list[Sequence] = []  # those that get a token, in the same order

    def add(self, sequence: Sequence, wanted: int) -> None:
        """Plan the sequence's next `wanted` tokens, or what is left of the budget."""
        count = wanted if wanted <= self.budget else self.budget
        self.budget -= count
        token_ids = sequence.token_ids
        start = sequence.num_computed_tokens
        stop = start + count
        sample = stop == len(token_ids)
        self.sequences.append(sequence)
        if sample:
            self.sampled.append(sequence)
        self.shares.append(
            ScheduledSequence(
                request_id=sequence.request_id,
                token_ids=token_ids[start:stop],
                start=start,
                block_table=sequence.block_table,
                sampling=sequence.sampling,
                sample=sample,
                history=sequence.history,
            )
        )


class Scheduler:
    """The waiting and the running sequences, both in order of arrival."""

    def __init__(
        self, block_manager: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({max_num_seqs}) must be at least 1 and at most "
                f"max_num_batched_tokens ({max_num_batched_tokens}): each running sequence "
                "needs one token per step"
            )
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._block_manager = block_manager
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that arrived after all others."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever its state, and free what it holds. Twice is once."""
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._block_manager.free(sequence)

    def schedule(self) -> ScheduledStep:
        """Plan the next step: decodes, then running prefills, then new ones, oldest first.

        Blocks are taken and sequences admitted or preempted here; what is computed is for the
        caller to record once the step has run. Empty only if there is no work.
        """
        step = ScheduledStep(self._max_num_batched_tokens)
        preempted = self._grow_running()
        prefills: list[tuple[Sequence, int]] = []  # one at most: who comes next needs budget left
        for sequence in self.running:
            uncomputed = len(sequence.token_ids) - sequence.num_computed_tokens
            if uncomputed == 1:
                step.add(sequence, 1)
            else:
                prefills.append((sequence, uncomputed))
        for sequence, uncomputed in prefills:
            step.add(sequence, uncomputed)
        if not preempted:  # blocks just taken from one sequence are not for newcomers
            while step.budget and self._can_admit():
                sequence = self._admit()
                step.add(sequence, len(sequence.token_ids))
        return step

    def check_invariants(self) -> None:
        """Hold queues, statuses and blocks against each other. For tests.

        Raises:
            AssertionError: they contradict.
        """
        waiting, running = list(self.waiting), self.running
        self._block_manager.check_invariants([*waiting, *running])
        checks = (
            (all(s.status is SequenceStatus.WAITING for s in waiting), "status in waiting"),
            (all(s.status is SequenceStatus.RUNNING for s in running), "status in running"),
            (not any(s.block_table or s.num_computed_tokens for s in waiting), "a waiter's blocks"),
            (waiting == sorted(waiting, key=_arrival), "order of waiting"),
            (running == sorted(running, key=_arrival), "order of running"),
            (len(running) <= self._max_num_seqs, "too many running"),
        )
        for holds, message in checks:
            if not holds:
                raise AssertionError(f"{message}: waiting {waiting}, running {running}")

    def _grow_running(self) -> bool:
        """Give each running sequence blocks for all its tokens. True if that cost another's."""
        block_manager = self._block_manager
        block_size = block_manager.block_size
        preemptions_before = self.num_preemptions
        for sequence in [
            s for s in self.running if len(s.token_ids) > len(s.block_table) * block_size
        ]:  # one block each: a step appends one token
            while sequence.status is SequenceStatus.RUNNING and not block_manager.num_free_blocks:
                self._preempt(self._choose_victim())
            if sequence.status is SequenceStatus.RUNNING:
                block_manager.allocate(sequence, 1)
        return self.num_preemptions > preemptions_before

    def _choose_victim(self) -> Sequence:
        """Of all but the oldest, the one preempted least often so far; of these the newest."""
        return min(self.running[1:], key=lambda s: (s.num_preemptions, -s.arrival))

    def _preempt(self, sequence: Sequence) -> None:
        """Take all its blocks; its tokens stay, and their KV is computed again later."""
        self.running.remove(sequence)
        self._block_manager.free(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        sequence.status = SequenceStatus.WAITING
        # All that never ran arrived later than all that did, so this is the front of the queue.
        bisect.insort(self.waiting, sequence, key=_arrival)
        self.num_preemptions += 1

    def _can_admit(self) -> bool:
        if not self.waiting or len(self.running) == self._max_num_seqs:
            return False
        block_manager = self._block_manager
        wanted = block_manager.blocks_for(len(self.waiting[0].token_ids)) + 1
        return block_manager.num_free_blocks >= min(wanted, block_manager.num_blocks)

    def _admit(self) -> Sequence:
        sequence = self.waiting.popleft()
        sequence.status = SequenceStatus.RUNNING
        blocks = self._block_manager.blocks_for(len(sequence.token_ids))
        self._block_manager.allocate(sequence, blocks)
        bisect.insort(self.running, sequence, key=_arrival)
        return sequence


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
