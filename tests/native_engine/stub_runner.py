"""A runner without a model: its KV cache holds token ids, and it checks every one it reads.

The next token is a hash of the whole context as read back through the block table, so a wrong
block, position, order or a block lost too early changes the output or fails an assertion. A slot
also holds a digest of all tokens up to its own, as a real one does in effect: a block read behind
another beginning than it was computed behind fails, though its tokens be right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from native_engine.types import (
    EngineRequest,
    FinishReason,
    PromptLogprob,
    SampledToken,
    SamplingParams,
    ScheduledSequence,
    SequenceResult,
    StepBatch,
)

Slot = tuple[int, str]  # token id, digest of the salt and of all tokens up to this one


def next_token(context: Sequence[int], sampling: SamplingParams, vocab_size: int) -> int:
    """The token at position len(context): a function of the context and (seed, position)."""
    noise = (sampling.seed, len(context)) if sampling.temperature >= 1e-4 else ()
    digest = hashlib.blake2b(repr((tuple(context), noise)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size


def prompt_logprobs(prompt: Sequence[int]) -> tuple[PromptLogprob, ...]:
    """Of all tokens but the first: a function of the tokens up to each."""
    return tuple(_prompt_logprob(prompt[:stop]) for stop in range(2, len(prompt) + 1))


def _prompt_logprob(context: Sequence[int]) -> PromptLogprob:
    digest = hashlib.blake2b(repr(tuple(context)).encode(), digest_size=4).digest()
    return PromptLogprob(
        token_id=context[-1], logprob=-float(int.from_bytes(digest, "big")), rank=1
    )


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

    dtype = "int"
    device = "none"
    deterministic = True
    description = "a stub"

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
        self.num_scored = 0  # prompt tokens whose log-probability was computed
        self.requests: dict[str, EngineRequest] = {}  # those whose prompt and salt are checked too
        self.on_execute: Callable[[StepBatch], None] = lambda batch: None
        self._kv: list[Slot | None] = [None] * (num_blocks * block_size)

    @property
    def num_tokens_computed(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        """Write the batch's tokens, then read every context back whole."""
        ids = [share.request_id for share in batch.sequences]
        assert ids, "an empty batch"
        assert len(set(ids)) == len(ids), "a request twice in a batch"
        self.batches.append(batch)
        for share in batch.sequences:
            assert share.token_ids, f"{share.request_id} has nothing to compute"
            self._write(share)
        for share in batch.sequences:
            if share.sample and share.sampling.rules is not None:
                assert share.history is not None
                assert list(share.history.token_ids) == self._whole_context(share)
        self.on_execute(batch)
        return [self._result(share) for share in batch.sequences]

    def poison(self, blocks: Iterable[int]) -> None:
        """Wipe blocks: whoever still reads them fails."""
        for block in blocks:
            start = block * self.block_size
            self._kv[start : start + self.block_size] = [None] * self.block_size

    def wipe(self, batch: StepBatch) -> None:
        """Undo what a batch wrote, as if the step had failed before it got there."""
        for share in batch.sequences:
            for position in range(share.start, share.start + len(share.token_ids)):
                self._kv[self._slot(share, position)] = None

    def _result(self, share: ScheduledSequence) -> SequenceResult:
        context = self._whole_context(share)
        scores = self._prompt_logprobs(share, context)
        if not share.sample:
            return SequenceResult(prompt_logprobs=scores)
        token_id = next_token(context, share.sampling, self.vocab_size)
        return SequenceResult((SampledToken(token_id=token_id),), scores)

    def _prompt_logprobs(
        self, share: ScheduledSequence, context: list[int]
    ) -> tuple[PromptLogprob, ...]:
        if share.sampling.num_prompt_logprobs is None:
            return ()
        assert share.history is not None
        prompt = share.history.token_ids[: share.history.num_prompt_tokens]
        behind = prompt[share.start + 1 : len(context) + 1]
        self.num_scored += len(behind)
        return tuple(
            _prompt_logprob([*context[:stop], token_id])
            for stop, token_id in enumerate(behind, share.start + 1)
        )

    def _write(self, share: ScheduledSequence) -> None:
        context = self._context(share, share.start)
        for position, token_id in enumerate(share.token_ids, share.start):
            context.append(token_id)
            self._kv[self._slot(share, position)] = (token_id, self._digest(share, context))

    def _slot(self, share: ScheduledSequence, position: int) -> int:
        block = share.block_table[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def _context(self, share: ScheduledSequence, length: int) -> list[int]:
        """The first `length` tokens as the blocks have them."""
        context: list[int] = []
        for position in range(length):
            slot = self._kv[self._slot(share, position)]
            assert slot is not None, f"{share.request_id} reads a freed slot at {position}"
            context.append(slot[0])
            assert slot[1] == self._digest(share, context), f"{share} reads {slot} at {position}"
        request = self.requests.get(share.request_id)
        if request is not None:
            prompt = request.prompt_token_ids[:length]
            assert tuple(context[: len(prompt)]) == prompt, f"{share} reads another's prompt"
        return context

    def _whole_context(self, share: ScheduledSequence) -> list[int]:
        return self._context(share, share.start + len(share.token_ids))

    def _digest(self, share: ScheduledSequence, context: Sequence[int]) -> str:
        request = self.requests.get(share.request_id)
        salt = request.cache_salt if request is not None else ""
        return hashlib.blake2b(repr((salt, tuple(context))).encode(), digest_size=8).hexdigest()
