"""Which sequences compute which tokens in the next step, and who gives way when blocks run out.

Continuous batching (Orca, OSDI 2022) with chunked prefill under one token budget (Sarathi-Serve,
arXiv:2403.02310). Knows tokens and blocks; nothing of clocks, sampling or the device.

Why every request ends:

* A sequence is admitted when blocks for all its known tokens and one more are free (or the whole
  pool is), and gets them at once: a prefill never stops half way for want of blocks. Blocks that
  another sequence holds and this one can share count as free.
* Only growing takes blocks from others, and never from the oldest running sequence. Alone it
  always fits, as `max_num_tokens` never exceeds the pool. So each step brings the oldest further.
* `waiting` is in order of arrival and its head is never overtaken, so the oldest of all gets in.
  A sequence is held back for a neighbour's sake once at most, and only beside work. One that waits
  for its parent's prompt is overtaken, but its parent arrived before it and gets on; when it has
  ended or was preempted, nobody waits for it.
* Preempting leaves fewer blocks free than the victim needs to come back: its own, less the one
  taken, against its own and one more. So two cannot push each other out step after step. (What it
  shares is neither freed nor needed; a block of its own that it finds shared later is needed less,
  and so once.)
"""

from __future__ import annotations

import bisect
from collections import deque

from native_engine.block_manager import BlockManager, Prefix
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import ScheduledSequence

WORTH_A_STEP = 2
"""Blocks that a neighbour must be computing for a sequence to wait a step for them. A block of
16 tokens is computed in less time than a step takes that reads all weights for it anew."""


class ScheduledStep:
    """A step being filled: the shares of the runner's batch, and the sequences they belong to."""

    __slots__ = ("budget", "sequences", "shares")

    def __init__(self, budget: int) -> None:
        self.budget = budget  # tokens that may still be added
        self.shares: list[ScheduledSequence] = []
        self.sequences: list[Sequence] = []  # whose shares these are, in order

    def add(self, sequence: Sequence, wanted: int) -> None:
        """Plan the sequence's next `wanted` tokens, or what is left of the budget."""
        count = wanted if wanted <= self.budget else self.budget
        self.budget -= count
        token_ids = sequence.token_ids
        start = sequence.num_computed_tokens
        stop = start + count
        self.sequences.append(sequence)
        self.shares.append(
            ScheduledSequence(
                request_id=sequence.request_id,
                token_ids=token_ids[start:stop],
                start=start,
                block_table=sequence.block_table,
                sampling=sequence.sampling,
                sample=stop == len(token_ids),
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
            self._admit_waiting(step)
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

    def _admit_waiting(self, step: ScheduledStep) -> None:
        """Start new sequences while there are tokens, places and blocks for the oldest of them."""
        while step.budget and self.waiting and len(self.running) < self._max_num_seqs:
            sequence = next((s for s in self.waiting if not s.waits_for_parent), None)
            if sequence is None:
                return
            prefix = self._block_manager.match(sequence)
            if not self._fits(sequence, prefix) or self._hold_back(sequence, prefix, step):
                return
            self.waiting.remove(sequence)
            self._admit(sequence, prefix)
            step.add(sequence, len(sequence.token_ids) - sequence.num_computed_tokens)

    def _fits(self, sequence: Sequence, prefix: Prefix) -> bool:
        block_manager = self._block_manager
        wanted = block_manager.blocks_for(len(sequence.token_ids)) + 1
        wanted = min(wanted, block_manager.num_blocks) - block_manager.num_used(prefix.blocks)
        return block_manager.num_free_blocks >= wanted

    def _admit(self, sequence: Sequence, prefix: Prefix) -> None:
        block_manager = self._block_manager
        sequence.status = SequenceStatus.RUNNING
        sequence.parent = None
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = 0 if prefix.is_forked else prefix.num_tokens
            sequence.is_forked = prefix.is_forked
        block_manager.adopt(sequence, prefix)
        blocks = block_manager.blocks_for(len(sequence.token_ids))
        block_manager.allocate(sequence, blocks - len(sequence.block_table))
        bisect.insort(self.running, sequence, key=_arrival)

    def _hold_back(self, sequence: Sequence, prefix: Prefix, step: ScheduledStep) -> bool:
        """Whether the step computes what the sequence needs next, and it has not waited before.

        Nobody overtakes it: the budget left over makes the step the shorter.
        """
        depth = len(prefix.blocks) + WORTH_A_STEP
        if sequence.was_held_back or depth >= len(sequence.prefix_hashes):
            return False
        wanted = sequence.prefix_hashes[depth]
        first = prefix.num_tokens
        sequence.was_held_back = any(
            share.start <= first and wanted in other.prefix_hashes[depth : depth + 1]
            for other, share in zip(step.sequences, step.shares, strict=True)
        )
        return sequence.was_held_back


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
