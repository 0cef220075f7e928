"""The values an engine takes and gives: token ids in, token ids out. No torch here.

Every local engine speaks these, not only the native one, so that one host process can run any of
them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from native_engine.batch_stats import BatchStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRules:
    """What changes a sequence's logits before its temperature does. Most sequences have none."""

    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[tuple[int, ...], ...] = ()  # none of these may come about among the outputs
    min_tokens: int = 0  # so many outputs come before one that could end the sequence
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added)
    repetition_penalty: float = 1.0  # over prompt and outputs: divides what is above 0
    frequency_penalty: float = 0.0  # over outputs: taken off once per occurrence
    presence_penalty: float = 0.0  # over outputs: taken off once


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. All in token ids.

    Stop strings live with the text.
    """

    max_tokens: int  # 0: the prompt is computed, and nothing drawn
    temperature: float = 1.0  # below 1e-4 greedy
    top_k: int = 0  # 0 means off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int = 0  # 64 bits; the noise is a function of (seed, position), never of the batch
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # drops the eos ids only, never the client's stop ids
    num_logprobs: int | None = (
        None  # None: no logprobs; 0: of the sampled token; k: and of the k most likely
    )
    rules: LogitRules | None = None  # None: the logits are sampled as they are
    num_prompt_logprobs: int | None = (
        None  # None: no logprobs of the prompt; 0: of its own tokens; k: and of the k most likely
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One sequence to generate."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    cache_salt: str = ""  # sequences share KV blocks only under the same
    tenant: str = ""  # whose it is: fair shares and quotas are counted by it
    weight: float = 1.0  # of its tenant's share, against those of others that wait as well
    priority: int = 0  # of its class: a higher one goes first
    timeout_s: float | None = None  # from add(): what is not done by then ends as it stands
    fork_of: str | None = (
        None  # one added before with this prompt and salt: computed there only, unless `sampling`
        # asks for log-probabilities of the prompt
    )
    output_token_ids: tuple[int, ...] = ()
    """Drawn already, by an engine that is gone: the sequence goes on behind them. They are outputs
    in every respect, `max_tokens` counts them too; only nobody is told of them again."""


class FinishReason(enum.Enum):
    """Why the engine ended a sequence."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"  # its time was over; comes without a token


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """One drawn token, with the raw log-probabilities if asked.

    Of itself and of the most likely ones.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprob:
    """One token of a prompt, given those before it: its raw log-probability, and the likeliest."""

    token_id: int
    logprob: float
    rank: int  # 1 and the number of tokens that are likelier
    top_logprobs: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceOutput:
    """What one step did for one request: a token, or the error that ended it.

    `finish_reason` or `error` is the end. A step that yields several tokens has as many outputs. A
    request that wants no token has one output, with neither token nor error.
    """

    request_id: str
    token: SampledToken | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    queue_s: float | None = (
        None  # on the first token: from add() until the step that computed prompt tokens began
    )
    cached_tokens: int | None = None  # on the first token: of the prompt, found in the prefix cache
    prompt_logprobs: tuple[PromptLogprob, ...] | None = (
        None  # on the first output, if asked for: of all tokens of the prompt but the first
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges and counters of an engine, cheap enough to be read every step."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # those with cached contents count as free
    num_preemptions: int = 0
    num_expired: int = 0  # requests that ended at their deadlines, ever
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked for in the prefix cache, ever
    prefix_cache_hits: int = 0  # and found
    num_draft_tokens: int = 0  # guessed ahead and verified, ever
    num_accepted_tokens: int = 0  # and found right
    num_cached_blocks: int = 0  # blocks that the prefix cache can find now, in use or free
    batches: BatchStats | None = None  # of an engine that batches by TGI's rule


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What does not change while an engine lives."""

    model_id: str
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    max_waiting: int
    num_blocks: int
    block_size: int
    dtype: str
    device: str
    description: str  # one line for a human
    deterministic: bool  # the same request yields the same tokens, whatever else runs
    max_input_tokens: int = 0  # of one prompt; 0: as many as the context holds
    max_new_tokens: int = 0  # of one answer; 0: likewise


class SteppedEngine(Protocol):
    """What `backends.host` runs. Single-threaded: the caller never overlaps calls."""

    @property
    def info(self) -> EngineInfo: ...

    def idle_s(self) -> float:
        """How long a step would do nothing, unless something is added or aborted: 0 if one is due,
        infinity without work.
        """
        ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            EngineError: a subclass says why it was refused; nothing was queued.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Forget a request in any state and free what it holds; unknown ids are fine.

        No output follows.
        """
        ...

    def step(self) -> list[SequenceOutput]:
        """Run one forward pass and return what came of it. Does nothing without work.

        A failing step ends its own requests with an `error` output; it raises only if the engine
        cannot go on.
        """
        ...

    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHistory:
    """All known tokens of a sequence: its prompt, then its outputs.

    `token_ids` is the sequence's own list and grows between steps; read it within one only. What
    rules count is counted from it anew each time, so a preemption has nothing to restore.
    """

    token_ids: Sequence[int]
    num_prompt_tokens: int

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSequence:
    """One sequence's share of a step: the tokens at positions start ..

    Start + len(token_ids) - 1 are computed.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]  # blocks for positions 0 .. start + len(token_ids) - 1, at least
    sampling: SamplingParams
    sample: (
        bool  # the last token's logits are sampled; false for a prefill chunk that is not the last
    )
    history: TokenHistory | None = None  # set if `sampling` has rules or asks about the prompt
    num_drafts: int = 0  # of token_ids, the last so many are guesses: see `SequenceResult`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """All that one forward pass computes: decodes first, then prefill chunks."""

    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[tuple[int, int], ...] = ()  # (from, to): whole blocks, before anything is written

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What a step drew for one of its sequences."""

    tokens: tuple[SampledToken, ...] = ()
    """Empty unless the share has `sample`. Then one after each draft's predecessor and one after
    the last token: `num_drafts + 1`, each drawn as if all drafts before it were right."""
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    """If `sampling` has `num_prompt_logprobs`: for each position p of the share with a token of the
    prompt behind it, of the token at p + 1."""


class Runner(Protocol):
    """The device side of the engine: weights, KV cache, forward pass, sampling."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def deterministic(self) -> bool:
        """Whether a sequence's tokens are the same, bit for bit, whatever else runs."""
        ...

    @property
    def description(self) -> str:
        """One line for a human."""
        ...

    def execute(self, batch: StepBatch) -> list[SequenceResult]:
        """Compute the batch, write its KV into the blocks, and draw a token for each sequence with
        `sample`. One result per sequence, in order.

        The noise for a token at position p of a request (start + len(token_ids) is that of the last
        drawn) depends on (seed, p) only.
        """
        ...
