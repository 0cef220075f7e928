"""A runner without a model: its KV cache holds token ids, and it checks every one it reads.

The next token is a hash of the whole context as read back through the block table, so a wrong
block, position, order or a block lost too early changes the output or fails an assertion. A slot
also holds its sequence's salt and a digest of all tokens up to its own, as a real one does in
effect: a block read behind another beginning than it was computed behind fails, though its tokens
be right.

Each step reads each context whole, after all of the step is written. What a sequence read in the
step before was verified then, so it need only be the same again, which costs one comparison of two
lists; everything else is verified slot by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from operator import itemgetter

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

Slot = tuple[int, int, str]  # token id, digest of all tokens up to this one, the sequence's salt
EMPTY = 0  # the digest of no tokens
_token_id: Callable[[Slot], int] = itemgetter(0)


def digest_after(digest: int, token_id: int) -> int:
    """Of 64 bits. The hash of a tuple of ints is the same in every process."""
    return hash((digest, token_id))


def draw(digest: int, position: int, sampling: SamplingParams, vocab_size: int) -> int:
    """The token at `position`, behind a context of this digest."""
    noise = (sampling.seed, position) if sampling.temperature >= 1e-4 else ()
    return hash((digest, *noise)) % vocab_size


def next_token(context: Sequence[int], sampling: SamplingParams, vocab_size: int) -> int:
    """The token at position len(context): a function of the context and (seed, position)."""
    digest = EMPTY
    for token_id in context:
        digest = digest_after(digest, token_id)
    return draw(digest, len(context), sampling, vocab_size)


def prompt_logprobs(prompt: Sequence[int]) -> tuple[PromptLogprob, ...]:
    """Of all tokens but the first: a function of the tokens up to each."""
    return tuple(_prompt_logprob(prompt[:stop]) for stop in range(2, len(prompt) + 1))


def _prompt_logprob(context: Sequence[int]) -> PromptLogprob:
    return PromptLogprob(token_id=context[-1], logprob=-float(hash(tuple(context)) % 2**32), rank=1)


def continuation(
    prompt: Sequence[int], sampling: SamplingParams, *, vocab_size: int, max_num_tokens: int
) -> tuple[list[int], FinishReason]:
    """What a request must yield, however it is scheduled. Shares no code with the engine."""
    if not sampling.max_tokens:
        return [], FinishReason.LENGTH
    digest = EMPTY
    for token_id in prompt:
        digest = digest_after(digest, token_id)
    outputs: list[int] = []
    while True:
        position = len(prompt) + len(outputs)
        token_id = draw(digest, position, sampling, vocab_size)
        digest = digest_after(digest, token_id)
        outputs.append(token_id)
        if token_id in sampling.eos_token_ids and not sampling.ignore_eos:
            return outputs, FinishReason.EOS
        if token_id in sampling.stop_token_ids:
            return outputs, FinishReason.STOP
        if len(outputs) == sampling.max_tokens or position + 1 == max_num_tokens:
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
        self._kv: list[list[Slot | None]] = [[None] * block_size for _ in range(num_blocks)]
        # request id -> the table through which it was read last, and what was read
        self._verified: dict[str, tuple[Sequence[int], list[Slot]]] = {}

    @property
    def num_tokens_computed(self) -> int:
        return sum(batch.num_tokens for batch in self.batches)

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        """Copy blocks, write the batch's tokens, then read every context back whole."""
        shares = batch.sequences
        assert shares, "an empty batch"
        assert len({share.request_id for share in shares}) == len(shares), "a request twice"
        self.batches.append(batch)
        for source, target in batch.copies:
            self._kv[target] = list(self._kv[source])
        contexts = [self._write(share) for share in shares]
        results = [
            self._result(share, context) for share, context in zip(shares, contexts, strict=True)
        ]
        self.on_execute(batch)
        return results

    def poison(self, blocks: Iterable[int]) -> None:
        """Wipe blocks: whoever still reads them fails."""
        for block in blocks:
            self._kv[block] = [None] * self.block_size

    def wipe(self, batch: StepBatch) -> None:
        """Undo what a batch wrote, as if the step had failed before it got there."""
        for share in batch.sequences:
            for position in range(share.start, share.start + len(share.token_ids)):
                block, offset = divmod(position, self.block_size)
                self._kv[share.block_table[block]][offset] = None

    def _write(self, share: ScheduledSequence) -> list[Slot]:
        """Put the share's tokens into their slots. Returns what its whole context must be."""
        assert share.token_ids, f"{share.request_id} has nothing to compute"
        assert len(share.token_ids) > share.num_drafts, f"{share.request_id} computes but guesses"
        table, size, salt = share.block_table, self.block_size, self._salt(share)
        context = self._context_before(share)
        digest = context[-1][1] if context else EMPTY
        for position, token_id in enumerate(share.token_ids, share.start):
            digest = digest_after(digest, token_id)
            slot = (token_id, digest, salt)
            context.append(slot)
            self._kv[table[position // size]][position % size] = slot
        self._check_prompt(share, context)
        self._verified[share.request_id] = table, context
        return context

    def _result(self, share: ScheduledSequence, context: list[Slot]) -> SequenceResult:
        """Read the context back and draw behind the last token, and behind each that a draft
        follows.
        """
        self._check_unchanged(share, context)
        scores = self._prompt_logprobs(share, context)
        if not share.sample:
            assert not share.num_drafts, f"{share.request_id} guesses what nothing is drawn after"
            return SequenceResult(prompt_logprobs=scores)
        num_known = len(context) - share.num_drafts
        if share.sampling.rules is not None:
            assert share.history is not None
            assert list(share.history.token_ids) == list(map(_token_id, context[:num_known]))
        return SequenceResult(
            tuple(
                SampledToken(token_id=draw(slot[1], position, share.sampling, self.vocab_size))
                for position, slot in enumerate(context[num_known - 1 :], num_known)
            ),
            scores,
        )

    def _prompt_logprobs(
        self, share: ScheduledSequence, slots: list[Slot]
    ) -> tuple[PromptLogprob, ...]:
        if share.sampling.num_prompt_logprobs is None:
            return ()
        context = list(map(_token_id, slots))
        assert share.history is not None
        prompt = share.history.token_ids[: share.history.num_prompt_tokens]
        behind = prompt[share.start + 1 : len(context) + 1]
        self.num_scored += len(behind)
        return tuple(
            _prompt_logprob([*context[:stop], token_id])
            for stop, token_id in enumerate(behind, share.start + 1)
        )

    def _context_before(self, share: ScheduledSequence) -> list[Slot]:
        """The first `start` slots: as verified in an earlier step, or verified now."""
        if share.request_id in self._verified:
            table, known = self._verified[share.request_id]
            if table is share.block_table and len(known) >= share.start:
                return known[: share.start]  # `_check_unchanged` holds it against the blocks
        context: list[Slot] = []
        digest, salt = EMPTY, self._salt(share)
        for position, slot in enumerate(self._read(share, share.start)):
            assert slot is not None, f"{share.request_id} reads a freed slot at {position}"
            digest = digest_after(digest, slot[0])
            assert slot[1:] == (digest, salt), f"{share} reads {slot} at {position}"
            context.append(slot)
        assert len(context) == share.start, f"{share} has too few blocks"
        return context

    def _check_unchanged(self, share: ScheduledSequence, context: list[Slot]) -> None:
        read = self._read(share, len(context))
        if read != context:
            wrong = [p for p, slot in enumerate(read) if slot is not context[p]]
            raise AssertionError(f"{share} reads another's slots, or freed ones, at {wrong}")

    def _check_prompt(self, share: ScheduledSequence, context: list[Slot]) -> None:
        request = self.requests.get(share.request_id)
        if request is not None:
            prompt = request.prompt_token_ids[: len(context)]
            found = tuple(map(_token_id, context[: len(prompt)]))
            assert found == prompt, f"{share} reads another's prompt"

    def _read(self, share: ScheduledSequence, length: int) -> list[Slot | None]:
        blocks = map(self._kv.__getitem__, share.block_table)
        return list(islice(chain.from_iterable(blocks), length))

    def _salt(self, share: ScheduledSequence) -> str:
        request = self.requests.get(share.request_id)
        return request.cache_salt if request is not None else ""
