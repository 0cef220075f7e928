"""The engine: add, abort, step. Read `Engine.step` first.

Turns requests into batches for a `Runner` and what it draws into outputs. Single-threaded; knows
nothing of text, processes or the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence as Values
from dataclasses import replace
from itertools import chain

from native_engine.block_manager import BlockManager
from native_engine.config import EngineConfig
from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.prefix_hash import root_hash
from native_engine.scheduler import ScheduledStep, Scheduler
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    PromptLogprob,
    Runner,
    SampledToken,
    SamplingParams,
    SequenceOutput,
    SequenceResult,
    StepBatch,
)

logger = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""So many failing steps in a row mean that the device, not a request, is broken."""


class Engine:
    """Continuous batching over any runner. Implements `native_engine.types.SteppedEngine`."""

    def __init__(self, runner: Runner, config: EngineConfig, *, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds. Sizes that the runner knows are taken from it."""
        self._runner = runner
        self._clock = clock
        self._block_manager = BlockManager(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            prefix_caching=config.prefix_caching,
        )
        self._scheduler = Scheduler(
            self._block_manager,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self._info = EngineInfo(
            model_id=config.model.stem,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            max_num_seqs=config.max_num_seqs,
            max_waiting=config.max_waiting,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            dtype=runner.dtype,
            device=runner.device,
            description=runner.description,
            deterministic=runner.deterministic,
        )
        self._max_num_tokens = min(runner.max_model_len, runner.num_blocks * runner.block_size)
        self._sequences: dict[str, Sequence] = {}  # waiting or running, by request id
        self._num_arrivals = 0
        self._num_failed_steps = 0  # in a row
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """Gauges and counters.

        A prompt is counted once, with its first token; recomputing it after a preemption is not.
        """
        block_manager = self._block_manager
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=block_manager.num_blocks,
            num_free_blocks=block_manager.num_free_blocks,
            num_preemptions=self._scheduler.num_preemptions,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            prefix_cache_queries=self._prefix_cache_queries if block_manager.prefix_caching else 0,
            prefix_cache_hits=self._prefix_cache_hits,
            num_cached_blocks=block_manager.num_named_blocks,
        )

    def add(self, request: EngineRequest) -> None:
        """Queue a request. `max_tokens` is cut to what the context and the block pool hold.

        Raises:
            RequestTooLong: prompt and one token exceed the context or the block pool.
            InvalidTokenId: an id of the prompt or the sampling params is outside the vocabulary.
            DuplicateRequest: its id is waiting or running.
            QueueFull: `max_num_seqs + max_waiting` requests are here already.
            EngineError: the prompt is empty.
        """
        self._check(request)
        num_prompt_tokens = len(request.prompt_token_ids)
        sequence = Sequence(
            request_id=request.request_id,
            sampling=request.sampling,
            arrival=self._num_arrivals,
            added_s=self._clock(),
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_num_tokens=min(
                num_prompt_tokens + request.sampling.max_tokens, self._max_num_tokens
            ),
            prefix_hashes=[
                root_hash(f"{self._info.model_id} {self._info.dtype}", request.cache_salt)
            ],
        )
        self._num_arrivals += 1
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Forget a request in any state and free its blocks; unknown ids are fine.

        No output follows, even if a step that computes it is under way.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence)

    def step(self) -> list[SequenceOutput]:
        """Run one forward pass and return what came of it, one output per sampled sequence.

        Raises:
            EngineError: the third failing step in a row, or more; the engine cannot go on.
        """
        # Choose what to compute: blocks change hands here, and only here.
        started_s = self._clock()
        step = self._scheduler.schedule()
        if not step.sequences:
            return []

        # Compute it. Whatever goes wrong ends the requests of this step, not the others.
        try:
            results = self._runner.execute(StepBatch(sequences=tuple(step.shares)))
        except Exception as error:
            logger.exception("a step of %d sequences failed", len(step.sequences))
            return self._fail(step, error)
        self._num_failed_steps = 0

        # Record what the blocks hold now; those that are full can be found from the next step on.
        self._record_computed(step, results, started_s)

        # Hand out the tokens. Whoever was aborted while the step ran gets none.
        return [
            self._append(sequence, token)
            for sequence, result in zip(step.sequences, results, strict=True)
            if sequence.status is SequenceStatus.RUNNING
            for token in result.tokens
        ]

    def check_invariants(self) -> None:
        """Hold queues, blocks and requests against each other. For tests.

        Raises:
            AssertionError: they contradict.
        """
        self._scheduler.check_invariants()
        queued = {s.request_id: s for s in [*self._scheduler.waiting, *self._scheduler.running]}
        if queued != self._sequences:
            raise AssertionError(f"{queued} are queued, {self._sequences} are known")

    def _check(self, request: EngineRequest) -> None:
        """Refuse what can never run, and what there is no room to queue. Raises as `add`."""
        info = self._info
        prompt = request.prompt_token_ids
        if not prompt:
            raise EngineError("the prompt is empty: at least one token is needed to go on from")
        if len(prompt) + 1 > info.max_model_len:
            raise RequestTooLong(
                f"the prompt has {len(prompt)} tokens; with one to generate that is more than "
                f"the context of {info.max_model_len}; shorten it"
            )
        blocks = self._block_manager.blocks_for(len(prompt) + 1)
        if blocks > info.num_blocks:
            raise RequestTooLong(
                f"the prompt has {len(prompt)} tokens; with one to generate that needs {blocks} "
                f"KV blocks of {info.block_size} tokens, and there are {info.num_blocks}; "
                "shorten it, or give the engine more blocks"
            )
        _check_token_ids("prompt", prompt, info.vocab_size)
        _check_sampling(request.sampling, info.vocab_size)
        if request.request_id in self._sequences:
            raise DuplicateRequest(f"request {request.request_id} is waiting or running already")
        if len(self._sequences) >= info.max_num_seqs + info.max_waiting:
            raise QueueFull(
                f"{len(self._sequences)} requests are running or waiting, of {info.max_num_seqs} "
                f"that may run and {info.max_waiting} that may wait; try again later"
            )

    def _record_computed(
        self, step: ScheduledStep, results: Values[SequenceResult], started_s: float
    ) -> None:
        block_size = self._block_manager.block_size
        for sequence, share, result in zip(step.sequences, step.shares, results, strict=True):
            start = share.start
            stop = start + len(share.token_ids)
            sequence.num_computed_tokens = stop
            first_block, stop_block = start // block_size, stop // block_size
            if first_block < stop_block and sequence.status is SequenceStatus.RUNNING:
                self._block_manager.publish(sequence, first_block, stop_block)
            if sequence.queue_s is None:
                sequence.queue_s = started_s - sequence.added_s
            if result.prompt_logprobs:  # at their place: a preemption has them computed anew
                sequence.prompt_logprobs[start:] = result.prompt_logprobs

    def _append(self, sequence: Sequence, token: SampledToken) -> SequenceOutput:
        """Take one token into a running sequence, and end it if that was its last."""
        if len(sequence.token_ids) == sequence.num_prompt_tokens:
            return self._begin(sequence, token)
        reason = self._take(sequence, token)
        return SequenceOutput(request_id=sequence.request_id, token=token, finish_reason=reason)

    def _begin(self, sequence: Sequence, token: SampledToken) -> SequenceOutput:
        """The first output, which tells of the prompt, too. Who wants no token gets none."""
        sampling = sequence.sampling
        prompt_logprobs: tuple[PromptLogprob, ...] | None = None
        if sampling.num_prompt_logprobs is None:
            self._prefix_cache_queries += sequence.num_prompt_tokens
        else:
            prompt_logprobs = tuple(sequence.prompt_logprobs)
            sequence.prompt_logprobs.clear()
            # It has them: should it be preempted, it comes back like any other.
            sequence.sampling = replace(sampling, num_prompt_logprobs=None)
        self._prompt_tokens_total += sequence.num_prompt_tokens
        self._prefix_cache_hits += sequence.num_cached_tokens or 0
        reason: FinishReason | None = FinishReason.LENGTH
        if sampling.max_tokens:
            reason = self._take(sequence, token)
        else:
            self._finish(sequence)
        return SequenceOutput(
            request_id=sequence.request_id,
            token=token if sampling.max_tokens else None,
            finish_reason=reason,
            queue_s=sequence.queue_s,
            cached_tokens=sequence.num_cached_tokens,
            prompt_logprobs=prompt_logprobs,
        )

    def _take(self, sequence: Sequence, token: SampledToken) -> FinishReason | None:
        """Add a token to what is known; why that ends the sequence, if it does."""
        sequence.token_ids.append(token.token_id)
        self._generation_tokens_total += 1
        reason = _finish_reason(sequence, token.token_id)
        if reason is not None:
            self._finish(sequence)
        return reason

    def _fail(self, step: ScheduledStep, error: Exception) -> list[SequenceOutput]:
        """End the requests of a failed step with an error; give up if it keeps happening."""
        failed = [s for s in step.sequences if s.status is SequenceStatus.RUNNING]
        for sequence in failed:
            self._finish(sequence)
        self._num_failed_steps += 1
        message = f"the forward pass failed: {type(error).__name__}: {error}"
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise EngineError(f"{self._num_failed_steps} steps in a row: {message}") from error
        return [SequenceOutput(request_id=s.request_id, error=message) for s in failed]

    def _finish(self, sequence: Sequence) -> None:
        """The one way out, for a request that ended and for one that was aborted."""
        del self._sequences[sequence.request_id]
        self._scheduler.finish(sequence)


def _finish_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    sampling = sequence.sampling
    if token_id in sampling.eos_token_ids and not sampling.ignore_eos:
        return FinishReason.EOS
    if token_id in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(sequence.token_ids) >= sequence.max_num_tokens:
        return FinishReason.LENGTH
    return None


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidTokenId. EOS ids are the model's own, not a client's."""
    _check_token_ids("stop", sampling.stop_token_ids, vocab_size)
    rules = sampling.rules
    if rules is not None:
        _check_token_ids("allowed", rules.allowed_token_ids, vocab_size)
        _check_token_ids("biased", tuple(one for one, _ in rules.logit_bias), vocab_size)
        _check_token_ids("banned", tuple(chain.from_iterable(rules.bad_words)), vocab_size)


def _check_token_ids(what: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidTokenId. Checks the ends first: prompts are long, and mostly right."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(t for t in token_ids if not 0 <= t < vocab_size)
        raise InvalidTokenId(
            f"{what} token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
        )
