"""Which sequences compute which tokens in the next step, and who gives way when blocks run out.

Continuous batching (Orca, OSDI 2022) with chunked prefill under one token budget (Sarathi-Serve,
arXiv:2403.02310). Knows tokens and blocks; nothing of sampling or the device, and of time only what
it is told. The decisions are in modules of their own: who is next (`waiting`, `fairness`), who fits
(`admission`, `output_lengths`), who gives way (`preemption`), how much of a prompt a step takes
(`chunking`, `step_cost`). `docs/scheduling.md` has the rules in the order in which they apply.

Why every request ends, whatever comes after it:

* `Sequence.rank` orders all sequences once and for all: by arrival, a class counting as so many
  seconds. Only finitely many that are still to come rank before a given one.
* A sequence is admitted when blocks for all its known tokens and one more are free (or the whole
  pool is), and gets them at once: a prefill never stops half way for want of blocks. Blocks that
  another sequence holds and this one can share count as free.
* The first of the running sequences gets tokens in every step, and what it needs to grow it takes
  from others; nobody takes its blocks but a newcomer that ranks before it. Alone it always fits, as
  `max_num_tokens` never exceeds the pool. So each step brings it further, until it ends or one
  ranks before it. By induction over the rank, each sequence that runs often enough ends.
* Each that waits runs again. Classes and tenants have turns (see `waiting`: a class by its age, a
  tenant as the counters of those before it rise with each turn). The head of its class stays the
  head until it is in. While the head that is next does not fit, `max_bypass` others at most get in
  before it in all its life; the others that run end or are preempted, and an engine where none of
  its class or a higher one runs takes it whatever is expected of it, if need be in the place of
  lower ones. A sequence is held back for a neighbour's sake once at most, and only beside work.
  One that stands aside for its parent ranks behind it; when the parent's prompt is computed, or the
  parent has ended or was preempted, it lines up.
* Growing leaves fewer blocks free than the victim needs to come back: its own, less the one taken,
  against its own and one more. So two cannot push each other out step after step. (What it shares
  is neither freed nor needed; a block of its own that it finds shared later is needed less, and so
  once.) Nor can a newcomer and those it displaces: they are of lower classes, and displace nobody
  of its own.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import replace

from native_engine.admission import Admission
from native_engine.block_manager import BlockManager, Prefix
from native_engine.chunking import MIN_CHUNK, split_budget, takes_another
from native_engine.deadlines import Deadlines
from native_engine.fairness import FairShares
from native_engine.output_lengths import OutputLengths
from native_engine.preemption import choose_displaced, choose_victim
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.step_cost import StepCost
from native_engine.types import ScheduledSequence
from native_engine.waiting import WaitingQueue

WORTH_A_STEP = 2
"""Blocks that a neighbour must be computing for a sequence to wait a step for them. A block of
16 tokens is computed in less time than a step takes that reads all weights for it anew."""


class ScheduledStep:
    """A step being filled: the shares of the runner's batch, and the sequences they belong to."""

    __slots__ = (
        "_limit",
        "budget",
        "num_decode_tokens",
        "num_rejected_tokens",
        "sequences",
        "shares",
    )

    def __init__(self, budget: int) -> None:
        self._limit = budget
        self.budget = budget  # tokens that may still be added
        self.shares: list[ScheduledSequence] = []
        self.sequences: list[Sequence] = []  # whose shares these are, in order
        self.num_decode_tokens = 0  # with drafts; the other tokens are of prompts
        self.num_rejected_tokens = 0  # of the drafts, when the step has run

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

    def add_drafts(self, index: int, drafts: list[int]) -> None:
        """Let a share that is sampled go on with guesses, which the budget must hold."""
        share = self.shares[index]
        self.budget -= len(drafts)
        self.num_decode_tokens += len(drafts)
        self.shares[index] = replace(
            share, token_ids=[*share.token_ids, *drafts], num_drafts=len(drafts)
        )

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of all shares that are no decodes."""
        return self._limit - self.budget - self.num_decode_tokens


class Scheduler:
    """The waiting sequences in line, and the running ones by rank."""

    def __init__(
        self,
        block_manager: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_bypass: int,
        aging_s: float,
        target_itl_s: float,
    ) -> None:
        """`target_itl_s` 0 means that no step is kept short."""
        if not 1 <= max_num_seqs <= max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs ({max_num_seqs}) must be at least 1 and at most "
                f"max_num_batched_tokens ({max_num_batched_tokens}): each running sequence "
                "needs one token per step"
            )
        self.waiting = WaitingQueue(aging_s=aging_s)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.deadlines = Deadlines()
        self.step_cost = StepCost()
        self._shares = FairShares()
        self.output_lengths = OutputLengths()
        self._admission = Admission(block_manager, self.output_lengths)
        self._block_manager = block_manager
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_bypass = max_bypass
        self._aging_s = aging_s
        self._target_itl_s = target_itl_s
        self._now_s = 0.0  # of the step that is planned
        self._num_events = 0  # sequences that came, went, or changed places
        self._num_events_tried = -1  # when it was last tried who might go before the head

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that arrived after all others."""
        sequence.account = self._shares.join(sequence.tenant)
        sequence.standing = sequence.priority
        sequence.rank = (sequence.added_s - sequence.priority * self._aging_s, sequence.arrival)
        self.deadlines.add(sequence)
        self.waiting.add(sequence, sequence.added_s)
        self._num_events += 1

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, whatever its state, and free what it holds. Twice is once."""
        if sequence.status is SequenceStatus.FINISHED:
            return
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        else:
            self._stop(sequence)
        sequence.status = SequenceStatus.FINISHED
        self.deadlines.remove(sequence)
        self._shares.leave(sequence.account)
        self._num_events += 1
        if sequence.num_outputs and not sequence.sampling.ignore_eos:
            self.output_lengths.record_end(sequence.tenant, sequence.num_outputs)

    def schedule(self, now_s: float) -> ScheduledStep:
        """Plan the next step: decodes first, then prefills, running ones and new ones.

        Blocks are taken and sequences admitted or preempted here; what is computed is for the
        caller to record once the step has run. Empty only if there is no work.
        """
        self._now_s = now_s
        preempted = self._grow_running()
        self.waiting.line_up(now_s)
        if not preempted:  # blocks just taken from one are not for newcomers
            self._admit_waiting()
        step = ScheduledStep(self._max_num_batched_tokens)
        prefills: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            uncomputed = len(sequence.token_ids) - sequence.num_computed_tokens
            if uncomputed == 1:
                step.add(sequence, 1)
            else:
                prefills.append((sequence, uncomputed))
        step.num_decode_tokens = self._max_num_batched_tokens - step.budget
        if prefills:
            budget = self._prefill_budget(len(step.shares))
            shares = split_budget([(s.priority, left) for s, left in prefills], budget)
            for (sequence, _), share in zip(prefills, shares, strict=True):
                if share:
                    step.add(sequence, share)
        return step

    def may_run_ahead(self) -> bool:
        """Whether all that run are likely to reach their ends with what is free, whoever is faster.

        Admission counts on a token per step each: who gets more grows before others have ended.
        """
        growth = sum(map(self._admission.expected_growth, self.running))
        return growth <= self._block_manager.num_free_blocks

    def expected_tokens(self) -> int:
        """Tokens that are still to be computed for all that is here, as far as can be foreseen."""
        outputs = self.output_lengths.expect("", 0) * len(self.waiting)
        return (
            self.waiting.num_prompt_tokens
            + outputs
            + sum(
                s.num_uncomputed_tokens + self._admission.expected_outputs(s) for s in self.running
            )
        )

    def check_invariants(self) -> None:
        """Hold queues, statuses and blocks against each other. For tests.

        Raises:
            AssertionError: they contradict.
        """
        waiting, running = list(self.waiting), self.running
        everyone = [*waiting, *running]
        self._block_manager.check_invariants(everyone)
        in_line = waiting[: len(waiting) - len(self.waiting.aside)]
        accounts = {s.account for s in everyone}
        ranks = [s.rank for s in running]
        checks = (
            ({s.status for s in waiting} <= {SequenceStatus.WAITING}, "status in waiting"),
            ({s.status for s in running} <= {SequenceStatus.RUNNING}, "status in running"),
            (
                not any(s.block_table or s.num_computed_tokens for s in waiting),
                "a waiter's blocks",
            ),
            (len(waiting) == len(self.waiting), "length of waiting"),
            (
                sum([s.num_prompt_tokens for s in in_line]) == self.waiting.num_prompt_tokens,
                "tokens of waiting",
            ),
            (ranks == sorted(ranks), "order of running"),
            (len(running) <= self._max_num_seqs, "too many running"),
            (len({a.tenant for a in accounts}) == len(accounts), "two accounts of one tenant"),
            (sum([a.num_sequences for a in accounts]) == len(everyone), "numbers of the accounts"),
            (
                len(self.deadlines) == sum([s.deadline_s < math.inf for s in everyone]),
                "deadlines",
            ),
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
        ]:  # one block each: a step appends one token, beside drafts that had their blocks
            while sequence.status is SequenceStatus.RUNNING and not block_manager.num_free_blocks:
                self.output_lengths.record_preemption()
                self._preempt(choose_victim(self.running, sequence))
            if sequence.status is SequenceStatus.RUNNING:
                block_manager.allocate(sequence, 1)
        return self.num_preemptions > preemptions_before

    def _preempt(self, sequence: Sequence) -> None:
        """Take all its blocks; its tokens stay, and their KV is computed again later."""
        self._stop(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        sequence.standing = sequence.priority
        sequence.status = SequenceStatus.WAITING
        self.waiting.add(sequence, self._now_s)
        self.num_preemptions += 1
        self._num_events += 1

    def _stop(self, sequence: Sequence) -> None:
        """Take a running sequence's place and blocks, and give back what its prompt has not used
        of what it was charged.
        """
        self.running.remove(sequence)
        self._block_manager.free(sequence)
        sequence.num_shared_blocks = 0
        sequence.cover_computed()
        sequence.account.counter -= sequence.prompt_charge

    def _admit_waiting(self) -> None:
        """Start who is next, while there are tokens, places and blocks."""
        prefills = [s for s in self.running if s.num_uncomputed_tokens > 1]
        preemptions_before = self.num_preemptions
        while self.waiting.has_head and self._takes_another(prefills):
            head = self.waiting.head(self._now_s)
            prefix = self._block_manager.match(head)
            if self._hold_back(head, prefix, prefills):
                return
            if not self._make_room(head, prefix):
                if self.num_preemptions == preemptions_before:
                    self._let_pass(head, prefills)
                return
            self.waiting.serve(head, self._now_s)
            self._admit(head, prefix, prefills)
            if self.num_preemptions > preemptions_before:
                return  # whoever made room is not to come back in the same step

    def _takes_another(self, prefills: list[Sequence]) -> bool:
        """Whether the step has tokens for one more prefill, and the engine a place or one that a
        waiting sequence might take.
        """
        if len(self.running) >= self._max_num_seqs:
            lowest = min(sequence.standing for sequence in self.running)
            if self.waiting.highest_priority <= lowest:
                return False
        budget = self._prefill_budget(len(self.running) - len(prefills))
        return takes_another([s.num_uncomputed_tokens for s in prefills], budget)

    def _prefill_budget(self, num_decodes: int) -> int:
        """Tokens of a step that are for prompts, so that the decodes beside get theirs in time."""
        budget = self._max_num_batched_tokens - num_decodes
        if num_decodes and self._target_itl_s:
            most = self.step_cost.prefill_tokens_within(self._target_itl_s, num_decodes)
            if most is not None:
                budget = min(budget, max(MIN_CHUNK, most))
        return budget

    def _let_pass(self, head: Sequence, prefills: list[Sequence]) -> None:
        """Admit others that fit before a head that does not; nothing new, nothing to try."""
        most = self._max_bypass - head.num_bypasses
        if not most or self._num_events == self._num_events_tried:
            return
        for sequence in self.waiting.behind(head, most):
            if len(self.running) >= self._max_num_seqs or not self._takes_another(prefills):
                return
            prefix = self._block_manager.match(sequence)
            if not self._fits(sequence, prefix):
                continue
            if self._hold_back(sequence, prefix, prefills):
                return
            self.waiting.remove(sequence)
            self._admit(sequence, prefix, prefills)
            head.num_bypasses += 1
        self._num_events_tried = self._num_events

    def _make_room(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Whether a waiting sequence can start now, if need be in the place of lower classes."""
        admission = self._admission
        while True:
            num_blocks = admission.missing_blocks(sequence, prefix)
            num_places = len(self.running) + 1 - self._max_num_seqs
            if num_blocks <= 0 and num_places <= 0:
                return admission.is_expected_to_fit(sequence, prefix, self.running)
            displaced = choose_displaced(
                self.running, sequence, num_blocks=num_blocks, num_places=num_places
            )
            if not displaced or not admission.is_expected_to_fit(sequence, prefix, self.running):
                return False
            for other in displaced:  # what they share with others still is not free: look again
                self._preempt(other)

    def _fits(self, sequence: Sequence, prefix: Prefix) -> bool:
        admission = self._admission
        return admission.missing_blocks(sequence, prefix) <= 0 and admission.is_expected_to_fit(
            sequence, prefix, self.running
        )

    def _admit(self, sequence: Sequence, prefix: Prefix, prefills: list[Sequence]) -> None:
        """Let a sequence run that is in the queue no more, and count it among `prefills`."""
        block_manager = self._block_manager
        sequence.status = SequenceStatus.RUNNING
        sequence.parent = None
        if sequence.num_cached_tokens is None:
            found = 0 if prefix.is_forked else prefix.num_tokens
            sequence.num_cached_tokens = min(found, sequence.num_prompt_tokens)
            sequence.is_forked = prefix.is_forked
        sequence.num_shared_blocks = block_manager.num_used(prefix.blocks)
        block_manager.adopt(sequence, prefix)
        sequence.cover_computed()
        sequence.account.counter += sequence.prompt_charge
        blocks = block_manager.blocks_for(len(sequence.token_ids))
        block_manager.allocate(sequence, blocks - len(sequence.block_table))
        bisect.insort(self.running, sequence, key=_rank)
        if sequence.num_uncomputed_tokens > 1:
            prefills.append(sequence)
        self.waiting.line_up(self._now_s)  # those to be forked from it, if it is one itself
        self._num_events += 1

    def _hold_back(self, sequence: Sequence, prefix: Prefix, prefills: list[Sequence]) -> bool:
        """Whether one of the prefills computes what it needs next, and it has not waited before.

        Nobody overtakes it: the budget left over makes the step the shorter.
        """
        depth = len(prefix.blocks) + WORTH_A_STEP
        if sequence.was_held_back or depth >= len(sequence.prefix_hashes):
            return False
        wanted = sequence.prefix_hashes[depth]
        first = prefix.num_tokens
        sequence.was_held_back = any(
            other.num_computed_tokens <= first and wanted in other.prefix_hashes[depth : depth + 1]
            for other in prefills
        )
        return sequence.was_held_back


def _rank(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank
