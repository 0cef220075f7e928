"""Speculative decoding: decodes that verify guessed tokens in the same step as their own.

A step reads all weights once, however few rows it has, so a few more rows are almost free. A decode
may therefore bring drafts, guesses at the tokens after its last known one: the runner draws a token
after each row, and those drawn while the drafts before them were right count.

Why no output changes: the token at a position is a function of the tokens before it and of noise
that depends on seed and position alone, and a row has the same bits in any step. A token drawn
after right drafts is therefore the very one that plain decoding draws there, and all others are
thrown away. This is exact rejection sampling (Leviathan et al., arXiv:2211.17192) for a draft that
is a point mass: it is accepted with its probability p(draft), for so often the noise draws it, and
otherwise the token drawn has the distribution of the rest. (Where a runner is not deterministic,
drafts move a row's last bits as neighbours do.)

The KV of rejected drafts stays behind in slots past `num_computed_tokens`, where it is never
published and never read, and is overwritten when the right token comes.

Knows steps and blocks, not how guesses are made.
"""

from __future__ import annotations

from native_engine.block_manager import BlockManager
from native_engine.drafter import Drafter
from native_engine.scheduler import ScheduledStep, Scheduler
from native_engine.sequence import Sequence

MAX_ROWS = 8
"""Rows of a step that has drafts: so many the CPU's product computes in one reading of the weights.
SmolLM2, one sequence on a busy machine, as a multiple of 1 row: 1.09 with 4, 1.35 with 8, 1.55 with
9, 2.1 with 16."""


class Speculation:
    """Adds drafts to planned steps and counts what came of them."""

    def __init__(
        self, scheduler: Scheduler, block_manager: BlockManager, *, max_draft_tokens: int
    ) -> None:
        """max_draft_tokens: of one sequence in one step; 0 turns it off."""
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._scheduler = scheduler
        self._block_manager = block_manager
        self._max_draft_tokens = max_draft_tokens

    def plan(self, step: ScheduledStep) -> None:
        """Let those of a step who are being answered guess, in equal shares, with rows that nobody
        else wanted. Where blocks are so few that whoever gets on faster might be in the way of
        others, nobody does.

        Blocks taken here are given back in `settle`, as far as the guesses were wrong.
        """
        if not self._max_draft_tokens:
            return
        room = min(step.budget, MAX_ROWS - step.num_decode_tokens - step.num_prefill_tokens)
        if room < 1 or not self._scheduler.may_run_ahead():
            return
        answered = [
            (index, sequence)
            for index, (sequence, share) in enumerate(zip(step.sequences, step.shares, strict=True))
            if share.sample and sequence.num_outputs
        ]
        for num_before, (index, sequence) in enumerate(answered):
            guess = self._guess(sequence, -(-room // (len(answered) - num_before)))
            if guess:
                step.add_drafts(index, guess)
                room -= len(guess)

    def settle(
        self, step: ScheduledStep, sequence: Sequence, num_drafts: int, num_accepted: int
    ) -> None:
        """Learn from a verified guess; a running sequence keeps the blocks of known tokens only."""
        self.num_draft_tokens += num_drafts
        self.num_accepted_tokens += num_accepted
        step.num_rejected_tokens += num_drafts - num_accepted
        if sequence.drafter is not None:
            sequence.drafter.record(num_drafts, num_accepted)
        self._block_manager.trim(sequence)

    def _guess(self, sequence: Sequence, most: int) -> list[int]:
        """At most so many drafts, with the blocks for them. The last token is never a draft: what
        comes after all of them must still fit.
        """
        if sequence.drafter is None:
            sequence.drafter = Drafter(sequence.token_ids)
        num_known, table = len(sequence.token_ids), sequence.block_table
        most = min(most, self._max_draft_tokens, sequence.max_num_tokens - num_known - 1)
        guess = sequence.drafter.guess(most)
        missing = self._block_manager.blocks_for(num_known + len(guess)) - len(table)
        if missing > 0:
            self._block_manager.allocate(sequence, min(missing, self._num_spare_blocks()))
        return guess[: len(table) * self._block_manager.block_size - num_known]

    def _num_spare_blocks(self) -> int:
        """Blocks that nobody misses: nobody waits, nothing is cached in them, and each that runs
        still finds one to grow into in the next step.
        """
        if len(self._scheduler.waiting):
            return 0
        block_manager, num_running = self._block_manager, len(self._scheduler.running)
        spare = min(block_manager.num_clean_blocks, block_manager.num_free_blocks - num_running)
        return max(0, spare)
