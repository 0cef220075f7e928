"""The static-batch engine: collect, compute to the end, collect again. Read `step` first.

What Hugging Face's `generate()` does with a padded batch, under the protocol of every local engine:
requests queue in order of arrival; up to `max_batch_size` of them become a batch once so many have
come, or once the first has waited `batch_timeout_s`; nobody joins a batch that runs. Tokens are
handed out as they are drawn, and a row's end when it comes.

There is nothing to share between rows, so a prompt is computed for each choice, and nothing to
choose between them, so priorities and weights change nothing here. A row that is aborted goes on
being computed, for nothing, as one that has ended does.

Single-threaded; knows nothing of text, processes or the device. `batch` has the layout.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

from backends.static_batch.batch import Batch
from backends.static_batch.config import StaticBatchConfig
from native_engine.answering import FailedSteps, advance, expired
from native_engine.deadlines import Deadlines
from native_engine.errors import DuplicateRequest, EngineError, QueueFull
from native_engine.intake import check_request
from native_engine.sequence import Sequence, SequenceStatus
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    Runner,
    SequenceOutput,
    SequenceResult,
    StepBatch,
)

logger = logging.getLogger(__name__)


class StaticBatchEngine:
    """Static batching over any runner. Implements `native_engine.types.SteppedEngine`."""

    def __init__(
        self, runner: Runner, config: StaticBatchConfig, *, clock: Callable[[], float]
    ) -> None:
        """`clock` gives monotonic seconds.

        Raises:
            EngineError: prompts or answers of the lengths asked for do not fit the context, or a
            full batch of them not the runner's KV cache.
        """
        self._runner = runner
        self._clock = clock
        self._max_batch_size = config.max_batch_size
        self._batch_timeout_s = config.batch_timeout_s
        max_input_tokens = config.input_tokens(runner.max_model_len)
        max_new_tokens = config.new_tokens(runner.max_model_len)
        longest = max(max_input_tokens, max_new_tokens)
        if longest >= runner.max_model_len:
            raise EngineError(
                f"prompts or answers of {longest} tokens do not fit the context of "
                f"{runner.max_model_len}: set max_input_tokens and max_new_tokens to less"
            )
        self._region_blocks = config.region_blocks(runner.max_model_len, runner.block_size)
        needed = config.max_batch_size * self._region_blocks
        if needed > runner.num_blocks:
            raise EngineError(
                f"a batch of {config.max_batch_size} needs {needed} KV blocks, and there are "
                f"{runner.num_blocks}"
            )
        self._info = EngineInfo(
            model_id=config.model.stem,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            max_num_seqs=config.max_batch_size,
            max_waiting=config.max_waiting,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            dtype=runner.dtype,
            device=runner.device,
            description=f"static batches of {config.max_batch_size}, {runner.description}",
            deterministic=runner.deterministic,
            max_input_tokens=max_input_tokens,
            max_new_tokens=max_new_tokens,
        )
        self._sequences: dict[str, Sequence] = {}  # waiting or running, by request id
        self._waiting: deque[Sequence] = deque()
        self._batch: Batch | None = None
        self._deadlines = Deadlines()
        self._batch_started_s = 0.0
        self._batch_duration_s: float | None = None  # of the last one that came to its end
        self._num_arrivals = 0
        self._failed_steps = FailedSteps()
        self._num_expired = 0
        self._prompt_tokens_total = 0
        self._generation_tokens_total = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def idle_s(self) -> float:
        if self._batch is not None or len(self._waiting) >= self._max_batch_size:
            return 0.0
        due_s = self._deadlines.next_s
        if self._waiting:
            due_s = min(due_s, self._waiting[0].added_s + self._batch_timeout_s)
        return max(0.0, due_s - self._clock())

    def stats(self) -> EngineStats:
        """Gauges and counters. What is reserved for a batch is in use until it is over."""
        num_rows = len(self._batch.rows) if self._batch is not None else 0
        return EngineStats(
            num_running=len(self._sequences) - len(self._waiting),
            num_waiting=len(self._waiting),
            num_blocks=self._info.num_blocks,
            num_free_blocks=self._info.num_blocks - num_rows * self._region_blocks,
            num_expired=self._num_expired,
            prompt_tokens_total=self._prompt_tokens_total,
            generation_tokens_total=self._generation_tokens_total,
        )

    def add(self, request: EngineRequest) -> None:
        """Queue a request. `max_tokens` is cut to what a row holds.

        Raises:
            RequestTooLong: the prompt is longer than `max_input_tokens`.
            InvalidTokenId: an id of the prompt or the sampling params is outside the vocabulary.
            DuplicateRequest: its id is waiting or running.
            QueueFull: `max_batch_size + max_waiting` requests are here already.
            EngineError: the prompt is empty, or the weight is not above 0.
        """
        info = self._info
        check_request(request, info)
        if request.request_id in self._sequences:
            raise DuplicateRequest(f"request {request.request_id} is waiting or running already")
        if len(self._sequences) >= info.max_num_seqs + info.max_waiting:
            raise QueueFull(
                f"{len(self._sequences)} requests are running or waiting, of {info.max_num_seqs} "
                f"that may run and {info.max_waiting} that may wait; try again later",
                retry_after_s=self._batch_duration_s,
            )
        added_s = self._clock()
        num_prompt_tokens = len(request.prompt_token_ids)
        max_tokens = min(request.sampling.max_tokens, info.max_new_tokens)
        sequence = Sequence(
            request_id=request.request_id,
            sampling=request.sampling,
            arrival=self._num_arrivals,
            added_s=added_s,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            num_prompt_tokens=num_prompt_tokens,
            num_given_outputs=len(request.output_token_ids),
            max_num_tokens=min(num_prompt_tokens + max_tokens, info.max_model_len),
            prefix_hashes=[],
            deadline_s=math.inf if request.timeout_s is None else added_s + request.timeout_s,
        )
        self._num_arrivals += 1
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        self._deadlines.add(sequence)

    def abort(self, request_id: str) -> None:
        """Forget a request in any state; unknown ids are fine. No output follows.

        Its row, if it has one, stays reserved until the batch is over.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence)

    def step(self) -> list[SequenceOutput]:
        """Collect a batch if none runs and one is due; then compute a token of each of its rows.

        What is out of time by now ends before it, with an output of its own.

        Raises:
            EngineError: the third failing step in a row, or more; the engine cannot go on.
        """
        started_s = self._clock()
        outputs = self._expire(started_s)

        # Nobody joins a batch that runs.
        batch = self._batch or self._collect(started_s)
        if batch is None:
            return outputs

        # Compute it. Whatever goes wrong ends all of the batch.
        shares = batch.shares()
        try:
            results = self._runner.execute(StepBatch(sequences=tuple(shares)))
        except Exception as error:
            logger.exception("a step of %d rows failed", len(batch.rows))
            return outputs + self._fail(batch, error)
        self._failed_steps.forget()

        # Hand out the tokens of those that have not ended; the padding has none.
        for row, result in zip(batch.rows, results[-len(batch.rows) :], strict=True):
            if row.is_live:
                outputs.append(self._apply(row.sequence, result))
        return outputs

    def check_invariants(self) -> None:
        """Hold the queue and the batch against the requests. For tests.

        Raises:
            AssertionError: they contradict.
        """
        rows = self._batch.rows if self._batch is not None else ()
        live = [row.sequence for row in rows if row.is_live]
        queued = {sequence.request_id: sequence for sequence in [*self._waiting, *live]}
        if queued != self._sequences or len(queued) != len(self._waiting) + len(live):
            raise AssertionError(f"{queued} are queued, {self._sequences} are known")
        if self._batch is not None and not live:
            raise AssertionError("a batch goes on with nobody in it")
        if len(self._deadlines) != sum(s.deadline_s < math.inf for s in queued.values()):
            raise AssertionError("deadlines are watched of others than those that are here")

    def _collect(self, now_s: float) -> Batch | None:
        """The next batch, if it is full or its first has waited long enough."""
        waiting = self._waiting
        is_due = len(waiting) >= self._max_batch_size or (
            waiting and now_s >= waiting[0].added_s + self._batch_timeout_s
        )
        if not is_due:
            return None
        taken = [waiting.popleft() for _ in range(min(len(waiting), self._max_batch_size))]
        for sequence in taken:
            sequence.status = SequenceStatus.RUNNING
            sequence.queue_s = now_s - sequence.added_s
        self._batch_started_s = now_s
        self._batch = Batch(
            taken, region_blocks=self._region_blocks, block_size=self._info.block_size
        )
        return self._batch

    def _apply(self, sequence: Sequence, result: SequenceResult) -> SequenceOutput:
        sequence.prompt_logprobs += result.prompt_logprobs
        if not sequence.num_drawn:
            self._prompt_tokens_total += sequence.num_prompt_tokens
        (token,) = result.tokens
        output = advance(sequence, token)
        self._generation_tokens_total += output.token is not None
        if output.finish_reason is not None:
            self._finish(sequence)
        return output

    def _expire(self, now_s: float) -> list[SequenceOutput]:
        """End what is out of time, waiting or running."""
        overdue = self._deadlines.overdue(now_s)
        for sequence in overdue:
            self._finish(sequence)
        self._num_expired += len(overdue)
        return expired(overdue)

    def _fail(self, batch: Batch, error: Exception) -> list[SequenceOutput]:
        """End a batch with an error; give up if it keeps happening."""
        failed = [row.sequence for row in batch.rows if row.is_live]
        for sequence in failed:
            self._finish(sequence)
        return self._failed_steps.tell(failed, error)

    def _finish(self, sequence: Sequence) -> None:
        """The one way out, for a request that ended and for one that was aborted."""
        del self._sequences[sequence.request_id]
        self._deadlines.remove(sequence)
        if sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        if self._batch is not None and self._batch.is_over:
            self._batch_duration_s = self._clock() - self._batch_started_s
            self._batch = None
