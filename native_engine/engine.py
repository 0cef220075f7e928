"""The engine: add, abort, step. Read `Engine.step` first.

Turns requests into batches for a `Runner` and what it draws into outputs. Single-threaded; knows
nothing of text, processes or the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence as Values
from itertools import pairwise

from native_engine.answering import FailedSteps, advance, expired
from native_engine.block_manager import BlockManager
from native_engine.config import EngineConfig
from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    QueueFull,
)
from native_engine.fairness import OUTPUT_COST
from native_engine.intake import check_request
from native_engine.prefix_hash import root_hash
from native_engine.scheduler import ScheduledStep, Scheduler
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.speculation import Speculation
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    Runner,
    SampledToken,
    ScheduledSequence,
    SequenceOutput,
    SequenceResult,
    StepBatch,
)

logger = logging.getLogger(__name__)

UNMEASURED_RETRY_AFTER_S = 1.0
"""Until a step has run: loading is over by then, and nobody has waited long."""

MIN_RETRY_AFTER_S = 0.1
"""A client that comes back sooner costs more than it gains."""


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
            max_cached_share=config.max_cached_share,
        )
        self._scheduler = Scheduler(
            self._block_manager,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_bypass=config.max_bypass,
            aging_s=config.aging_s,
            target_itl_s=config.target_itl_s,
        )
        self._speculation = Speculation(
            self._scheduler,
            self._block_manager,
            max_draft_tokens=config.max_draft_tokens if config.speculation != "off" else 0,
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
        self._max_waiting_tokens = config.max_waiting_tokens
        self._max_num_tokens = min(runner.max_model_len, runner.num_blocks * runner.block_size)
        self._sequences: dict[str, Sequence] = {}  # waiting or running, by request id
        self._num_arrivals = 0
        self._failed_steps = FailedSteps()
        self._num_expired = 0
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

    def idle_s(self) -> float:
        return 0.0 if self._sequences else math.inf

    def stats(self) -> EngineStats:
        """Gauges and counters.

        A prompt is counted once, with its first token; recomputing it after a preemption is not,
        nor is what a sibling was forked from.
        """
        block_manager = self._block_manager
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=block_manager.num_blocks,
            num_free_blocks=block_manager.num_free_blocks,
            num_preemptions=self._scheduler.num_preemptions,
            num_expired=self._num_expired,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            prefix_cache_queries=self._prefix_cache_queries if block_manager.prefix_caching else 0,
            prefix_cache_hits=self._prefix_cache_hits,
            num_draft_tokens=self._speculation.num_draft_tokens,
            num_accepted_tokens=self._speculation.num_accepted_tokens,
            num_cached_blocks=block_manager.num_named_blocks,
        )

    def add(self, request: EngineRequest) -> None:
        """Queue a request. `max_tokens` is cut to what the context and the block pool hold.

        Raises:
            RequestTooLong: prompt and one token exceed the context or the block pool.
            InvalidTokenId: an id of the prompt or the sampling params is outside the vocabulary.
            DuplicateRequest: its id is waiting or running.
            QueueFull: `max_num_seqs + max_waiting` requests are here already, or as many prompt
                tokens wait as may.
            EngineError: the prompt is empty or not that of the request it should be forked from,
                or the weight is not above 0.
        """
        check_request(request, self._info)
        if request.request_id in self._sequences:
            raise DuplicateRequest(f"request {request.request_id} is waiting or running already")
        root = root_hash(f"{self._info.model_id} {self._info.dtype}", request.cache_salt)
        parent = self._parent(request, root)
        self._check_room(0 if parent else len(request.prompt_token_ids))
        added_s = self._clock()
        num_prompt_tokens = len(request.prompt_token_ids)
        sequence = Sequence(
            request_id=request.request_id,
            sampling=request.sampling,
            arrival=self._num_arrivals,
            added_s=added_s,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            num_prompt_tokens=num_prompt_tokens,
            num_given_outputs=len(request.output_token_ids),
            max_num_tokens=min(
                num_prompt_tokens + request.sampling.max_tokens, self._max_num_tokens
            ),
            prefix_hashes=[root],
            tenant=request.tenant,
            weight=request.weight,
            priority=request.priority,
            deadline_s=math.inf if request.timeout_s is None else added_s + request.timeout_s,
            parent=parent,
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

        What is out of time by now ends before it, with an output of its own.

        Raises:
            EngineError: the third failing step in a row, or more; the engine cannot go on.
        """
        started_s = self._clock()
        outputs = self._expire(started_s)

        # Choose what to compute: blocks change hands here, and only here.
        step = self._scheduler.schedule(started_s)
        if not step.sequences:
            return outputs
        self._speculation.plan(step)

        # Compute it. Whatever goes wrong ends the requests of this step, not the others.
        copies = self._block_manager.begin_step()
        try:
            results = self._runner.execute(StepBatch(sequences=tuple(step.shares), copies=copies))
        except Exception as error:
            logger.exception("a step of %d sequences failed", len(step.sequences))
            return outputs + self._fail(step, error)
        finally:
            self._block_manager.end_step()
        self._failed_steps.forget()
        duration_s = self._clock() - started_s

        # Record what the blocks hold now; those that are full can be found from the next step on.
        self._record_computed(step, results, started_s)

        # Hand out the tokens. Whoever was aborted while the step ran gets none.
        outputs += [
            output
            for sequence, share, result in zip(step.sequences, step.shares, results, strict=True)
            if sequence.status is SequenceStatus.RUNNING
            for output in (
                self._verify(step, sequence, share, result)
                if share.num_drafts
                else [self._append(sequence, token) for token in result.tokens]
            )
        ]
        self._scheduler.step_cost.observe(
            step.num_decode_tokens,
            step.num_prefill_tokens,
            duration_s,
            num_rejected_tokens=step.num_rejected_tokens,
        )
        return outputs

    def check_invariants(self) -> None:
        """Hold queues, blocks and requests against each other. For tests.

        Raises:
            AssertionError: they contradict.
        """
        self._scheduler.check_invariants()
        queued = {s.request_id: s for s in [*self._scheduler.waiting, *self._scheduler.running]}
        if queued != self._sequences:
            raise AssertionError(f"{queued} are queued, {self._sequences} are known")

    def _check_room(self, num_prompt_tokens: int) -> None:
        """Refuse what there is no room to queue. Raises QueueFull.

        A prompt may wait alone, however long it is. One that is forked counts as none.
        """
        info, num_here = self._info, len(self._sequences)
        if num_here >= info.max_num_seqs + info.max_waiting:
            raise QueueFull(
                f"{num_here} requests are running or waiting, of {info.max_num_seqs} "
                f"that may run and {info.max_waiting} that may wait; try again later",
                retry_after_s=self._retry_after_s(1 / num_here),
            )
        queued = self._scheduler.waiting.num_prompt_tokens
        excess = queued + num_prompt_tokens - self._max_waiting_tokens
        if self._max_waiting_tokens and queued and excess > 0:
            raise QueueFull(
                f"prompts of {queued} tokens are waiting, of {self._max_waiting_tokens} that may; "
                f"there is no room for one of {num_prompt_tokens}; try again later",
                retry_after_s=self._retry_after_s(min(1.0, excess / queued)),
            )

    def _retry_after_s(self, share: float) -> float:
        """When so much of all work that is here will be done, at the pace of the last steps."""
        tokens_per_s = self._scheduler.step_cost.tokens_per_s
        if tokens_per_s is None:
            return UNMEASURED_RETRY_AFTER_S
        return max(MIN_RETRY_AFTER_S, share * self._scheduler.expected_tokens() / tokens_per_s)

    def _expire(self, now_s: float) -> list[SequenceOutput]:
        """End what is out of time, waiting or running."""
        overdue = self._scheduler.deadlines.overdue(now_s)
        for sequence in overdue:
            self._finish(sequence)
        self._num_expired += len(overdue)
        return expired(overdue)

    def _parent(self, request: EngineRequest, root: bytes) -> Sequence | None:
        """Whom to fork it from, if that one is still here. Raises EngineError.

        Nobody, if it asks for log-probabilities of its prompt: it computes that itself.
        """
        parent = self._sequences.get(request.fork_of) if request.fork_of is not None else None
        if parent is not None:
            prompt = parent.token_ids[: parent.num_prompt_tokens]
            if prompt != list(request.prompt_token_ids) or parent.prefix_hashes[0] != root:
                raise EngineError(
                    f"request {request.request_id} cannot be forked from {request.fork_of}, which "
                    "has another prompt or cache salt; leave fork_of out"
                )
        return parent if request.sampling.num_prompt_logprobs is None else None

    def _record_computed(
        self, step: ScheduledStep, results: Values[SequenceResult], started_s: float
    ) -> None:
        """What is known to be right: of drafts, `_verify` says it."""
        block_size = self._block_manager.block_size
        for sequence, share, result in zip(step.sequences, step.shares, results, strict=True):
            start = share.start
            stop = start + len(share.token_ids) - share.num_drafts
            sequence.num_computed_tokens = stop
            first_block, stop_block = start // block_size, stop // block_size
            if first_block < stop_block and sequence.status is SequenceStatus.RUNNING:
                self._block_manager.publish(sequence, first_block, stop_block)
            if sequence.queue_s is None:
                sequence.queue_s = started_s - sequence.added_s
            if result.prompt_logprobs:  # at their place: a preemption has them computed anew
                sequence.prompt_logprobs[start:] = result.prompt_logprobs

    def _verify(
        self,
        step: ScheduledStep,
        sequence: Sequence,
        share: ScheduledSequence,
        result: SequenceResult,
    ) -> list[SequenceOutput]:
        """Take the tokens drawn while the drafts before them were right, as so many steps would."""
        block_size = self._block_manager.block_size
        outputs = [self._append(sequence, result.tokens[0])]
        for draft, (drawn, following) in zip(
            share.token_ids[-share.num_drafts :], pairwise(result.tokens), strict=True
        ):
            if draft != drawn.token_id or sequence.status is not SequenceStatus.RUNNING:
                break
            sequence.num_computed_tokens += 1  # the draft's own KV is right as well
            num_blocks, offset = divmod(sequence.num_computed_tokens, block_size)
            if not offset:
                self._block_manager.publish(sequence, num_blocks - 1, num_blocks)
            outputs.append(self._append(sequence, following))
        self._speculation.settle(step, sequence, share.num_drafts, len(outputs) - 1)
        return outputs

    def _append(self, sequence: Sequence, token: SampledToken) -> SequenceOutput:
        """Take one token into a running sequence, and end it if that was its last."""
        if not sequence.num_drawn:
            self._count_prompt(sequence)
        output = advance(sequence, token)
        if output.token is not None:
            sequence.account.counter += OUTPUT_COST / sequence.weight
            self._generation_tokens_total += 1
        if output.finish_reason is not None:
            self._finish(sequence)
        return output

    def _count_prompt(self, sequence: Sequence) -> None:
        """With its first token. What a sibling was forked from is not its own."""
        if sequence.is_forked:
            return
        self._prompt_tokens_total += sequence.num_prompt_tokens
        if sequence.sampling.num_prompt_logprobs is None:
            self._prefix_cache_queries += sequence.num_prompt_tokens
        self._prefix_cache_hits += sequence.num_cached_tokens or 0

    def _fail(self, step: ScheduledStep, error: Exception) -> list[SequenceOutput]:
        """End the requests of a failed step with an error; give up if it keeps happening."""
        failed = [s for s in step.sequences if s.status is SequenceStatus.RUNNING]
        for sequence in failed:
            self._finish(sequence)
        return self._failed_steps.tell(failed, error)

    def _finish(self, sequence: Sequence) -> None:
        """The one way out, for a request that ended and for one that was aborted."""
        del self._sequences[sequence.request_id]
        self._scheduler.finish(sequence)
