"""TGI's batching task as an engine: add, abort, step. Read `PriorityBatcher._next_pass` first.

One forward pass a step. A first batch is prefilled; then, before each decode, the queue is asked
for more. What it gives is prefilled while the others pause, and decodes with them from then on; the
pass after that is a decode whatever waits, so that nobody pauses twice in a row. With chunking,
prefills and decodes are one pass, and the queue is asked at each.

A request holds the blocks of its whole reservation from admission to its end: nobody is preempted,
and nobody runs out of blocks. An answer longer than a reservation goes on in another one, at the
back of the queue; its known tokens are its prompt then, and nothing else of it changes.

Source: the batching task of TGI's router (text-generation-inference, backends/v3); which requests
are next is `queue`. Knows nothing of text, processes or the device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import NamedTuple

from backends.priority_batcher.config import PriorityBatcherConfig, resolve
from backends.priority_batcher.figures import Concat, Figures, Method
from backends.priority_batcher.queue import Admission, Entry, Queue
from native_engine.answering import FailedSteps, advance, expired
from native_engine.block_manager import BlockManager
from native_engine.deadlines import Deadlines
from native_engine.engine import (
    MIN_RETRY_AFTER_S,
    UNMEASURED_RETRY_AFTER_S,
)
from native_engine.errors import DuplicateRequest, QueueFull
from native_engine.intake import check_request
from native_engine.prefix_hash import root_hash
from native_engine.sequence import SequenceStatus
from native_engine.step_cost import StepCost
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    Runner,
    ScheduledSequence,
    SequenceOutput,
    SequenceResult,
    StepBatch,
)

logger = logging.getLogger(__name__)


class _Pass(NamedTuple):
    method: Method
    work: list[Admission]


class PriorityBatcher:
    """Implements `native_engine.types.SteppedEngine` over any runner."""

    def __init__(
        self, runner: Runner, config: PriorityBatcherConfig, *, clock: Callable[[], float]
    ) -> None:
        """`clock` gives monotonic seconds.

        Raises:
            EngineError: the runner holds less than the options ask for.
        """
        self._runner = runner
        self._clock = clock
        self._config = config = resolve(config, runner)
        self._block_manager = BlockManager(
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            prefix_caching=config.prefix_caching,
        )
        self._queue = Queue(self._block_manager, config)
        self._running: list[Entry] = []  # the batch, in the order of admission
        self._waiting_tokens = 1  # passes since others were last admitted
        self._is_decode_due = False  # they have paused for others in the pass before
        self._entries: dict[str, Entry] = {}  # in line or running, by request id
        self._deadlines = Deadlines()
        self._step_cost = StepCost()
        self._figures = Figures()
        self._info = _info(runner, config)
        self._num_arrivals = 0
        self._failed_steps = FailedSteps()
        self._num_expired = 0
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0
        self._prefix_cache_queries = 0
        self._prefix_cache_hits = 0
        if config.chunking:
            logger.info(
                "with chunking, waiting_served_ratio is not used, and max_waiting_tokens only for "
                "the age of classes"
            )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        return bool(self._entries)

    def idle_s(self) -> float:
        return 0.0 if self._entries else math.inf

    def stats(self) -> EngineStats:
        """Gauges and counters. A prompt is counted once, with its first token."""
        blocks = self._block_manager
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._queue),
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free_blocks,
            num_expired=self._num_expired,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
            prefix_cache_queries=self._prefix_cache_queries,
            prefix_cache_hits=self._prefix_cache_hits,
            num_cached_blocks=blocks.num_named_blocks,
            batches=self._figures.snapshot(
                current_max_tokens=self._num_reserved_tokens(),
                max_total_tokens=self._config.max_batch_total_tokens,
            ),
        )

    def add(self, request: EngineRequest) -> None:
        """Queue a request. `max_tokens` is cut to what `max_total_tokens` leaves.

        `fork_of` is not needed: siblings find the prompt in the prefix cache, once it is there.

        Raises:
            DuplicateRequest: its id is waiting or running.
            QueueFull: `max_concurrent_requests` are here already.
            RequestTooLong: the prompt is longer than `max_input_tokens`, or leaves no room for a
                token.
            InvalidTokenId, EngineError: as `native_engine.intake.check_request`.
        """
        if request.request_id in self._entries:
            raise DuplicateRequest(f"request {request.request_id} is waiting or running already")
        self._check_permit()
        check_request(request, self._info)
        added_s = self._clock()
        num_prompt_tokens = len(request.prompt_token_ids)
        root = root_hash(f"{self._info.model_id} {self._info.dtype}", request.cache_salt)
        entry = Entry(
            request_id=request.request_id,
            sampling=request.sampling,
            arrival=self._num_arrivals,
            added_s=added_s,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            num_prompt_tokens=num_prompt_tokens,
            num_given_outputs=len(request.output_token_ids),
            max_num_tokens=min(
                num_prompt_tokens + request.sampling.max_tokens, self._config.max_total_tokens
            ),
            prefix_hashes=[root],
            tenant=request.tenant,
            priority=request.priority,
            deadline_s=math.inf if request.timeout_s is None else added_s + request.timeout_s,
        )
        self._num_arrivals += 1
        self._entries[request.request_id] = entry
        self._deadlines.add(entry)
        self._queue.append(entry)

    def abort(self, request_id: str) -> None:
        """Forget a request in any state and free its blocks; unknown ids are fine.

        No output follows, even if a step that computes it is under way.
        """
        entry = self._entries.get(request_id)
        if entry is not None:
            self._finish(entry)

    def step(self) -> list[SequenceOutput]:
        """Run one forward pass and return what came of it, one output per sampled request.

        What is out of time by now ends before it, with an output of its own.

        Raises:
            EngineError: the third failing step in a row, or more; the engine cannot go on.
        """
        started_s = self._clock()
        outputs = self._expire(started_s)
        method, work = self._next_pass()
        if not work:
            return outputs
        begun_s = self._clock()
        self._figures.begin(method)
        self._block_manager.begin_step()
        try:
            results = self._runner.execute(StepBatch(sequences=tuple(map(_share, work))))
        except Exception as error:
            logger.exception("a %s of %d requests failed", method, len(work))
            self._figures.fail(method)
            return outputs + self._fail(work, error)
        finally:
            self._block_manager.end_step()
        self._failed_steps.forget()
        forward_s = self._clock() - begun_s
        for (entry, num_tokens), result in zip(work, results, strict=True):
            if entry.status is SequenceStatus.RUNNING:  # and was not aborted while the step ran
                outputs += self._record(entry, num_tokens, result, started_s)
        inference_s = self._clock() - begun_s
        self._figures.end(method, forward_s=forward_s, inference_s=inference_s)
        self._step_cost.observe(0, sum(num_tokens for _, num_tokens in work), inference_s)
        return outputs

    def check_invariants(self) -> None:
        """Hold queue, batch, blocks and requests against each other. For tests.

        Raises:
            AssertionError: they contradict.
        """
        self._queue.check_invariants()
        self._block_manager.check_invariants(self._running)
        blocks_for = self._block_manager.blocks_for
        here = {entry.request_id: entry for entry in [*self._queue, *self._running]}
        num_timed = sum(entry.deadline_s < math.inf for entry in here.values())
        checks = (
            (here == self._entries, "those here are not those that are known"),
            (len(self._deadlines) == num_timed, "not all deadlines are watched"),
            (
                all(len(e.block_table) == blocks_for(e.limit - 1) for e in self._running),
                "someone holds other blocks than those of its reservation",
            ),
            (
                sum(entry.limit for entry in self._running) <= self._config.max_batch_total_tokens,
                "more is reserved than may be",
            ),
            (len(self._running) <= self._config.max_batch_size, "too many run"),
        )
        for holds, message in checks:
            if not holds:
                raise AssertionError(f"{message}: {here}")

    def _next_pass(self) -> _Pass:
        """What the next pass computes: a prefill, a decode or, with chunking, both."""
        config, running = self._config, self._running
        most = max(1, config.max_batch_prefill_tokens - len(running) + 1)
        work = [
            Admission(entry, min(entry.num_uncomputed_tokens, most)) for entry in running
        ]  # a token of each; of a prompt that has come in part, what the others leave
        if config.chunking:
            num_tokens = sum(num_tokens for _, num_tokens in work)
            budget = config.max_batch_prefill_tokens - num_tokens
            admissions = self._admit("chunking", 0, budget)
            return _Pass("prefill" if admissions else "decode", work + admissions)
        if not running or not self._is_decode_due:
            is_patient = self._waiting_tokens < config.max_waiting_tokens
            min_size = int(len(running) * config.waiting_served_ratio) if is_patient else 0
            self._is_decode_due = bool(running)
            concat: Concat = "backpressure" if is_patient else "wait_exceeded"
            admissions = self._admit(concat, min_size, config.max_batch_prefill_tokens)
            if admissions:
                self._waiting_tokens = 1
                return _Pass("prefill", admissions)
        self._is_decode_due = False
        self._waiting_tokens += 1
        return _Pass("decode", work)

    def _admit(self, concat: Concat, min_size: int, prefill_budget: int) -> list[Admission]:
        """Add to the batch what the queue gives."""
        running, config = self._running, self._config
        admissions = self._queue.next_batch(
            min_size=min_size,
            max_size=config.max_batch_size - len(running),
            prefill_budget=prefill_budget,
            token_budget=config.max_batch_total_tokens - self._num_reserved_tokens(),
        )
        if not admissions:
            return []
        self._figures.admit(len(admissions), concat if running else None)
        for entry, _ in admissions:
            entry.status = SequenceStatus.RUNNING
            if entry.num_cached_tokens is None:
                found = min(entry.num_computed_tokens, entry.num_prompt_tokens)
                entry.num_cached_tokens = found
            running.append(entry)
        if logger.isEnabledFor(logging.DEBUG):
            ids = [entry.request_id for entry, _ in admissions]
            logger.debug("iteration %d admits %s", self._queue.iteration, ids)
        return admissions

    def _num_reserved_tokens(self) -> int:
        return sum(entry.limit for entry in self._running)

    def _record(
        self, entry: Entry, num_tokens: int, result: SequenceResult, started_s: float
    ) -> list[SequenceOutput]:
        """Take what a pass computed of an entry; the token it drew, if that was not a chunk."""
        block_size = self._block_manager.block_size
        first_block = entry.num_computed_tokens // block_size
        entry.num_computed_tokens += num_tokens
        self._block_manager.publish(entry, first_block, entry.num_computed_tokens // block_size)
        entry.prompt_logprobs += result.prompt_logprobs
        if entry.queue_s is None:
            entry.queue_s = started_s - entry.added_s
        if not result.tokens:
            return []
        if not entry.num_drawn:
            self._count_prompt(entry)
        output = advance(entry, result.tokens[0])
        self._generation_tokens_total += output.token is not None
        if output.finish_reason is not None:
            self._finish(entry)
        elif len(entry.token_ids) == entry.limit:
            self._stop(entry)
            entry.num_computed_tokens = 0
            entry.status = SequenceStatus.WAITING
            self._queue.append(entry)
        return [output]

    def _count_prompt(self, entry: Entry) -> None:
        """With its first token."""
        self._prompt_tokens_total += entry.num_prompt_tokens
        if self._config.prefix_caching and entry.sampling.num_prompt_logprobs is None:
            self._prefix_cache_queries += entry.num_prompt_tokens
        self._prefix_cache_hits += entry.num_cached_tokens or 0

    def _check_permit(self) -> None:
        """Raises QueueFull."""
        num_here = len(self._entries)
        if num_here < self._config.max_concurrent_requests:
            return
        retry_after_s, tokens_per_s = UNMEASURED_RETRY_AFTER_S, self._step_cost.tokens_per_s
        if tokens_per_s is not None:  # at this pace, if all take what is reserved for them
            left = sum(entry.limit - entry.num_computed_tokens for entry in self._entries.values())
            retry_after_s = max(MIN_RETRY_AFTER_S, left / num_here / tokens_per_s)
        raise QueueFull(
            f"{num_here} requests are here, of {num_here} that may be (max_concurrent_requests); "
            "try again later",
            retry_after_s=retry_after_s,
        )

    def _expire(self, now_s: float) -> list[SequenceOutput]:
        """End what is out of time, waiting or running."""
        overdue = [self._entries[s.request_id] for s in self._deadlines.overdue(now_s)]
        for entry in overdue:
            self._finish(entry)
        self._num_expired += len(overdue)
        return expired(overdue)

    def _fail(self, work: list[Admission], error: Exception) -> list[SequenceOutput]:
        """End all of a failed pass with an error; give up if it keeps happening."""
        failed = [entry for entry, _ in work if entry.status is SequenceStatus.RUNNING]
        for entry in failed:
            self._finish(entry)
        return self._failed_steps.tell(failed, error)

    def _finish(self, entry: Entry) -> None:
        """The one way out, for a request that ended and for one that was aborted."""
        del self._entries[entry.request_id]
        self._deadlines.remove(entry)
        if entry.status is SequenceStatus.RUNNING:
            self._stop(entry)
        else:
            self._queue.remove(entry)
        entry.status = SequenceStatus.FINISHED

    def _stop(self, entry: Entry) -> None:
        """Take its place in the batch and its blocks."""
        self._running.remove(entry)
        self._block_manager.free(entry)


def _share(admission: Admission) -> ScheduledSequence:
    entry, num_tokens = admission
    start = entry.num_computed_tokens
    stop = start + num_tokens
    return ScheduledSequence(
        request_id=entry.request_id,
        token_ids=entry.token_ids[start:stop],
        start=start,
        block_table=entry.block_table,
        sampling=entry.sampling,
        sample=stop == len(entry.token_ids),
        history=entry.history,
    )


def _info(runner: Runner, config: PriorityBatcherConfig) -> EngineInfo:
    """Of a resolved config: a prompt has no limit of its own if the context is all that limits."""
    has_limit = config.max_input_tokens < config.max_total_tokens - 1
    return EngineInfo(
        model_id=config.model.stem,
        max_model_len=config.max_total_tokens,
        vocab_size=runner.vocab_size,
        max_num_seqs=config.max_batch_size,
        max_waiting=config.max_concurrent_requests - config.max_batch_size,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        dtype=runner.dtype,
        device=runner.device,
        description=runner.description,
        deterministic=runner.deterministic,
        max_input_tokens=config.max_input_tokens if has_limit else 0,
    )
