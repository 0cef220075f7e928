"""A runner without a model: its KV cache holds token ids, and it checks every one it reads.

The next token is a hash of the whole context as read back through the block table, so a wrong
block, position, order or a block lost too early changes the output or fails an assertion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from native_engine.types import (
    FinishReason,
    SampledToken,
    SamplingParams,
    ScheduledSequence,
    StepBatch,
)

Slot = tuple[str, int, int]  # request id, position, token id


def next_token(context: Sequence[int], sampling: SamplingParams, vocab_size: int) -> int:
    """The token at position len(context): a function of the context and (seed, position)."""
    noise = (sampling.seed, len(context)) if sampling.temperature >= 1e-4 else ()
    digest = hashlib.blake2b(repr((tuple(context), noise)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size


def continuation(
    prompt: Sequence[int], sampling: SamplingParams, *, vocab_size: int, max_num_tokens: int
) -> tuple[list[int], FinishReason]:
    """What a request must yield, however it is scheduled. Shares no code with the engine."""
    context = list(prompt)
    while True:
        context.append(next_token(context, sampling, vocab_size))
        outputs = context[len(prompt) :]
        if context[-1] in sampling.eos_token_ids and not sampling.ignore_eos:
            return outputs, FinishReason.EOS
        if context[-1] in sampling.stop_token_ids:
            return outputs, FinishReason.STOP
        if len(outputs) == sampling.max_tokens or len(context) == max_num_tokens:
            return outputs, FinishReason.LENGTH


class StubRunner:
    """Implements `native_engine.types.Runner`; `on_execute` runs in the middle of each step."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        vocab_size: int = 50,
        max_model_len: int = 200,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.batches: list[StepBatch] = []
        self.on_execute: Callable[[StepBatch], None] = lambda batch: None
        self._kv: list[Slot | None] = [None] * (num_blocks * block_size)

    @property
    def num_tokens_computed(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)

    def execute(self, batch: StepBatch) -> list[SampledToken]:
        """Write the batch's tokens, then read every context back whole."""
        ids = [share.request_id for share in batch.sequences]
        assert ids, "an empty batch"
        assert len(set(ids)) == len(ids), "a request twice in a batch"
        self.batches.append(batch)
        for share in batch.sequences:
            assert share.token_ids, f"{share.request_id} has nothing to compute"
            if share.start == 0:
                self._forget(share.request_id)
            for position, token_id in enumerate(share.token_ids, share.start):
                self._kv[self._slot(share, position)] = (share.request_id, position, token_id)
        for share in batch.sequences:
            if share.sample and share.sampling.rules is not None:
                assert share.history is not None
                assert list(share.history.token_ids) == self._context(share)
        self.on_execute(batch)
        return [
            SampledToken(token_id=next_token(self._context(share), share.sampling, self.vocab_size))
            for share in batch.sequences
            if share.sample
        ]

    def poison(self, blocks: Iterable[int]) -> None:
        """Wipe blocks: whoever still reads them fails."""
        for block in blocks:
            start = block * self.block_size
            self._kv[start : start + self.block_size] = [None] * self.block_size

    def _slot(self, share: ScheduledSequence, position: int) -> int:
        block = share.block_table[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def _context(self, share: ScheduledSequence) -> list[int]:
        context: list[int] = []
        for position in range(share.start + len(share.token_ids)):
            slot = self._kv[self._slot(share, position)]
            assert slot is not None, f"{share.request_id} reads a freed slot at {position}"
            assert slot[:2] == (share.request_id, position), f"{share} reads {slot} at {position}"
            context.append(slot[2])
        return context

    def _forget(self, request_id: str) -> None:
        """A sequence that starts over must compute all of it again."""
        self._kv = [slot if slot and slot[0] != request_id else None for slot in self._kv]
