"""Random traffic against the batcher: classes, families, deadlines, aborts, failing passes,
answers that go on. Whatever comes, in which order, each request yields what it yields alone, ends
once, and an idle batcher has all its blocks.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from native_engine.answering import MAX_FAILED_STEPS
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.types import EngineRequest, FinishReason, SequenceOutput, StepBatch
from tests.backends.priority_batcher.harness import make_batcher
from tests.native_engine.harness import Clock
from tests.native_engine.stub_runner import StubRunner, continuation, prompt_logprobs
from tests.native_engine.traffic import VOCAB_SIZE, Family, Moment, families_of, moments_of

ODDS = (("arrive", 32), ("abort", 6), ("abort inside", 6), ("pause", 4), ("fail", 2))  # in 256
INJECTED = "injected"
WORKLOADS = st.binary(min_size=120, max_size=240).map(families_of)
MOMENTS = st.binary(min_size=60, max_size=120).map(lambda raw: moments_of(raw, ODDS))


@dataclass(slots=True)
class Promise:
    """What a live request must yield, and how far it has come."""

    request: EngineRequest
    tokens: list[int]
    reason: FinishReason
    deadline_s: float
    num_yielded: int = 0

    def keep(self, output: SequenceOutput) -> None:
        drawn = [] if output.token is None else [output.token.token_id]
        assert drawn == self.tokens[self.num_yielded : self.num_yielded + 1]
        is_first = not self.num_yielded
        assert is_first == (output.queue_s is not None) == (output.cached_tokens is not None)
        asks = self.request.sampling.num_prompt_logprobs is not None
        told = prompt_logprobs(self.request.prompt_token_ids) if asks and is_first else None
        assert output.prompt_logprobs == told
        assert not (asks and is_first and output.cached_tokens)
        self.num_yielded += 1
        is_last = self.num_yielded >= len(self.tokens)
        assert output.finish_reason == (self.reason if is_last else None)


class BatcherMachine(RuleBasedStateMachine):
    """Keeps a promise for each request that was taken in."""

    is_sound = False  # while it is being set up, and after a check has failed

    @initialize(
        num_blocks=st.integers(1, 24),
        block_size=st.integers(1, 4),
        max_model_len=st.integers(2, 60),
        max_concurrent=st.integers(1, 9),
        max_batch_size=st.sampled_from([0, 0, 1, 3]),
        prefill=st.sampled_from([0, 0, 1, 5, 20]),
        generation_length=st.sampled_from([1, 2, 5, 1000]),
        chunking=st.booleans(),
        prefix_caching=st.booleans(),
        ratio=st.sampled_from([0.0, 0.3, 2.0]),
        max_waiting_tokens=st.sampled_from([1, 3, 20]),
        max_bypass=st.integers(0, 3),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_concurrent: int,
        max_batch_size: int,
        prefill: int,
        generation_length: int,
        chunking: bool,
        prefix_caching: bool,
        ratio: float,
        max_waiting_tokens: int,
        max_bypass: int,
    ) -> None:
        self.runner = StubRunner(
            num_blocks=max(num_blocks, -(-2 // block_size)),
            block_size=block_size,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
        )
        self.clock = Clock()
        self.batcher = make_batcher(
            self.runner,
            clock=self.clock,
            max_concurrent_requests=max_concurrent,
            max_batch_size=max_batch_size,
            max_batch_prefill_tokens=prefill,
            default_generation_length=generation_length,
            chunking=chunking,
            prefix_caching=prefix_caching,
            waiting_served_ratio=ratio,
            max_waiting_tokens=max_waiting_tokens,
            max_bypass=max_bypass,
        )
        self.max_concurrent = max_concurrent
        self.max_num_tokens = min(max_model_len, self.runner.num_blocks * block_size)
        most = self.max_num_tokens - 1
        self.max_input_tokens = min(most, prefill) if prefill and not chunking else most
        self.runner.on_execute = self.inside
        self.intrude: Callable[[StepBatch], None] = lambda batch: None
        self.ids = map(str, itertools.count())
        self.coming: deque[EngineRequest] = deque()
        self.live: dict[str, Promise] = {}
        self.computing: set[str] = set()
        self.num_failed_in_a_row = self.num_expired = self.generated_tokens = 0
        self.happenings: dict[str, Callable[[int], None]] = {
            "step": lambda which: self.step_once(),
            "arrive": self.step_after_arrivals,
            "abort": self.step_after_an_abort,
            "abort inside": self.step_with_an_abort_inside,
            "pause": self.step_after_a_pause,
            "fail": self.step_that_fails,
        }
        self.is_sound = True

    @rule(families=WORKLOADS, moments=MOMENTS)
    def run(self, families: list[Family], moments: list[Moment]) -> None:
        """The requests come at moments that say so, at the latest when there is no other work."""
        self.is_sound = False
        for first, *others in families:
            first = replace(first, request_id=next(self.ids))
            siblings = [
                replace(one, request_id=next(self.ids), fork_of=first.request_id) for one in others
            ]
            self.coming.extend([first, *siblings])
        for what, which in moments:
            while self.coming and not self.live:
                self.let_come(1 + which % 6)
            if not self.live:
                break
            self.happenings[what](which)
        self.is_sound = True

    def teardown(self) -> None:
        """Whatever is left ends, though each may wait for all the others' work, and compute its
        own as often as its answer goes on.
        """
        if not self.is_sound:
            return
        for _ in range(100 * self.max_num_tokens * (1 + len(self.live))):
            if not self.live:
                break
            self.step_once()
        assert not self.live
        assert self.batcher.step() == []

    def let_come(self, count: int) -> None:
        for _ in range(min(count, len(self.coming))):
            self.submit(self.coming.popleft())

    def submit(self, request: EngineRequest) -> None:
        """A refusal comes at once, and says which."""
        if len(self.live) == self.max_concurrent:
            with pytest.raises(QueueFull) as refusal:
                self.batcher.add(request)
            assert refusal.value.retry_after_s
        elif len(request.prompt_token_ids) > self.max_input_tokens:
            with pytest.raises(RequestTooLong):
                self.batcher.add(request)
        else:
            self.batcher.add(request)
            self.runner.requests[request.request_id] = request
            tokens, reason = continuation(
                request.prompt_token_ids,
                request.sampling,
                vocab_size=VOCAB_SIZE,
                max_num_tokens=self.max_num_tokens,
            )
            timeout_s = math.inf if request.timeout_s is None else request.timeout_s
            deadline_s = self.clock.now_s + timeout_s
            self.live[request.request_id] = Promise(request, tokens, reason, deadline_s)

    def step_after_arrivals(self, which: int) -> None:
        self.let_come(1 + which % 6)
        self.step_once()

    def step_after_an_abort(self, which: int) -> None:
        self.abort(which)
        self.check()
        self.step_once()

    def step_with_an_abort_inside(self, which: int) -> None:
        self.intrude = lambda batch: self.abort(which)
        self.step_once()

    def step_after_a_pause(self, which: int) -> None:
        self.clock.now_s += 2.0
        self.step_once()

    def step_that_fails(self, which: int) -> None:
        """Not often enough in a row for the batcher to give up."""
        if self.num_failed_in_a_row < MAX_FAILED_STEPS - 1:
            self.intrude = self.explode
        self.step_once()

    def abort(self, which: int) -> None:
        if self.live:
            request_id = list(self.live)[which % len(self.live)]
            del self.live[request_id]
            self.batcher.abort(request_id)

    def explode(self, batch: StepBatch) -> None:
        self.runner.wipe(batch)  # what a failed pass wrote is worth nothing
        self.num_failed_in_a_row += 1
        raise RuntimeError(INJECTED)

    def inside(self, batch: StepBatch) -> None:
        """While the pass runs: then what this step has in store."""
        self.clock.now_s += 0.05 + 0.01 * batch.num_tokens
        self.computing = {share.request_id for share in batch.sequences}
        self.intrude(batch)
        self.num_failed_in_a_row = 0

    def step_once(self) -> None:
        """Step, and hold the outputs against the promises. A failure is of the whole batch."""
        overdue = {n for n, one in self.live.items() if one.deadline_s <= self.clock.now_s}
        for request_id in overdue:
            del self.live[request_id]
        outputs = self.batcher.step()
        self.intrude = lambda batch: None
        failed = {output.request_id for output in outputs if output.error is not None}
        assert not failed or failed == self.computing & self.live.keys()
        for output in outputs:
            if output.finish_reason is FinishReason.DEADLINE:
                overdue.remove(output.request_id)
                self.num_expired += 1
            else:
                self.receive(output)
        assert not overdue
        self.check()

    def receive(self, output: SequenceOutput) -> None:
        """What is not live, no longer or not yet, has no outputs."""
        promise = self.live[output.request_id]
        if output.error is not None:
            assert output.error.endswith(INJECTED), output.error
        else:
            promise.keep(output)
            self.generated_tokens += output.token is not None
        if output.finish_reason is not None or output.error is not None:
            del self.live[output.request_id]

    def check(self) -> None:
        self.batcher.check_invariants()
        stats = self.batcher.stats()
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert self.batcher.has_work == bool(self.live)
        assert self.live or stats.num_free_blocks == stats.num_blocks
        assert stats.num_expired == self.num_expired
        assert stats.generation_tokens_total == self.generated_tokens


BatcherMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=12, deadline=None)
TestBatcherMachine = BatcherMachine.TestCase
