"""Random traffic against the engine's promises, over random pools, budgets and queue sizes.

The promises, by their numbers in the tests of this folder:

1. Conservation: whatever is added, aborted, preempted or fails, and when, the books balance after
   every step, and an idle engine has all its blocks (SGLang #6888, vLLM #46283).
2. Every accepted request ends exactly once, and an aborted one says nothing more.
3. A greedy request yields the same tokens whatever its neighbours, arrival order, token budget,
   block size, cache and preemptions.
4. So does a seeded one.
6. No step exceeds the token budget or the number of sequences, or plans what it has preempted.
7. What was accepted ends within a bounded number of steps; what can never run is refused at once.
10. Text is streamed whole and cut at stops exactly: `tests/backends/text`.
12. Sequences under different salts share no block.
13. Counters and usage are what was handed out, to the token.

1 to 4 hold on a real model too, bit for bit: `test_random_schedules`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from native_engine.engine import MAX_FAILED_STEPS
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.types import EngineRequest, FinishReason, SequenceOutput, StepBatch
from tests.native_engine.harness import Clock, expected, make_engine
from tests.native_engine.peeking import lost_blocks, preempt, running
from tests.native_engine.stub_runner import StubRunner
from tests.native_engine.traffic import VOCAB_SIZE, Moment, moments_of, requests_of

ODDS = (("arrive", 32), ("preempt", 12), ("abort", 4), ("abort inside", 4), ("fail", 1))  # in 256
INJECTED = "injected"
WORKLOADS = st.binary(min_size=120, max_size=240).map(requests_of)
MOMENTS = st.binary(min_size=60, max_size=120).map(lambda raw: moments_of(raw, ODDS))


@dataclass(slots=True)
class Promise:
    """What a live request must yield, and how far it has come."""

    request: EngineRequest
    tokens: list[int]
    reason: FinishReason
    added_s: float
    num_yielded: int = 0
    started: tuple[float, int] | None = None  # when it first ran, and from which token on

    @property
    def work(self) -> int:
        """Tokens to compute, if none is lost."""
        return len(self.request.prompt_token_ids) + len(self.tokens)

    def keep(self, output: SequenceOutput) -> None:
        """Hold an output against it: promises 3, 4 and 13."""
        assert output.token is not None
        assert output.token.token_id == self.tokens[self.num_yielded]
        if self.num_yielded == 0:
            assert self.started is not None
            started_s, num_cached = self.started
            assert (output.queue_s, output.cached_tokens) == (started_s - self.added_s, num_cached)
        else:
            assert (output.queue_s, output.cached_tokens) == (None, None)
        self.num_yielded += 1
        is_last = self.num_yielded == len(self.tokens)
        assert output.finish_reason == (self.reason if is_last else None)


class EngineMachine(RuleBasedStateMachine):
    """Keeps a promise for each accepted request, and counts what comes of them.

    What can happen at a step is a method by its name in `ODDS`; what must hold after one is in
    `check`.
    """

    is_sound = False  # while it is being set up, and after a check has failed

    @initialize(
        num_blocks=st.integers(1, 24),
        block_size=st.integers(1, 4),
        max_model_len=st.integers(2, 60),
        max_num_seqs=st.integers(1, 6),
        spare_budget=st.integers(0, 12),
        max_waiting=st.integers(0, 4),
        prefix_caching=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        spare_budget: int,
        max_waiting: int,
        prefix_caching: bool,
    ) -> None:
        self.runner = StubRunner(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
        )
        self.clock = Clock()
        self.budget = max_num_seqs + spare_budget
        self.engine = make_engine(
            self.runner,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=max_waiting,
            clock=self.clock,
            prefix_caching=prefix_caching,
        )
        self.prefix_caching = prefix_caching
        self.max_num_tokens = min(max_model_len, num_blocks * block_size)
        self.is_sound = True
        self.runner.on_execute = self.inside
        self.intrude: Callable[[StepBatch], None] = lambda batch: None
        self.ids = map(str, itertools.count())
        self.coming: deque[EngineRequest] = deque()
        self.live: dict[str, Promise] = {}
        self.num_failed_in_a_row = 0
        self.prompt_tokens = self.generated_tokens = self.cached_tokens = 0
        self.happenings: dict[str, Callable[[int], None]] = {
            "step": self.step_plainly,
            "arrive": self.step_after_arrivals,
            "preempt": self.step_after_a_preemption,
            "abort": self.step_after_an_abort,
            "abort inside": self.step_with_an_abort_inside,
            "fail": self.step_that_fails,
        }

    @rule(requests=WORKLOADS, moments=MOMENTS)
    def run(self, requests: list[EngineRequest], moments: list[Moment]) -> None:
        """The requests come at moments that say so, at the latest when there is no other work."""
        self.is_sound = False
        self.coming += requests
        for what, which in moments:
            while self.coming and not self.live:
                self.let_come(1 + which % 6)
            if not self.live:
                break
            self.happenings[what](which)
        self.is_sound = True

    def teardown(self) -> None:
        """Promise 7: whatever is left ends, though each may have to wait for all the others'
        work.
        """
        if not self.is_sound:
            return
        bound = (len(self.live) + 1) * sum(promise.work for promise in self.live.values())
        for _ in range(bound):
            if not self.live:
                break
            self.step_once()
        assert not self.live
        assert self.engine.step() == []

    def let_come(self, count: int) -> None:
        for _ in range(min(count, len(self.coming))):
            self.submit(replace(self.coming.popleft(), request_id=next(self.ids)))
        self.check()

    def submit(self, request: EngineRequest) -> None:
        """Promise 7, its second half: a refusal comes at once, and says which."""
        if len(request.prompt_token_ids) + 1 > self.max_num_tokens:
            with pytest.raises(RequestTooLong):
                self.engine.add(request)
        elif len(self.live) == self.engine.info.max_num_seqs + self.engine.info.max_waiting:
            with pytest.raises(QueueFull):
                self.engine.add(request)
        else:
            self.engine.add(request)
            self.runner.requests[request.request_id] = request
            tokens, reason = expected(request, self.runner)
            self.live[request.request_id] = Promise(request, tokens, reason, self.clock.now_s)

    def step_plainly(self, which: int) -> None:
        self.step_once()

    def step_after_arrivals(self, which: int) -> None:
        self.let_come(1 + which % 6)
        self.step_once()

    def step_after_a_preemption(self, which: int) -> None:
        sequences = running(self.engine)
        if sequences:
            preempt(self.engine, sequences[which % len(sequences)])
            self.check()
        self.step_once()

    def step_after_an_abort(self, which: int) -> None:
        self.abort(which)
        self.check()
        self.step_once()

    def step_with_an_abort_inside(self, which: int) -> None:
        self.intrude = lambda batch: self.abort(which)
        self.step_once()

    def step_that_fails(self, which: int) -> None:
        """Not often enough in a row for the engine to give up."""
        if self.num_failed_in_a_row < MAX_FAILED_STEPS - 1:
            self.intrude = self.explode
        self.step_once()

    def abort(self, which: int) -> None:
        request_id = list(self.live)[which % len(self.live)]
        del self.live[request_id]
        self.engine.abort(request_id)

    def explode(self, batch: StepBatch) -> None:
        self.runner.wipe(batch)  # what a failed step wrote is worth nothing
        self.num_failed_in_a_row += 1
        raise RuntimeError(INJECTED)

    def step_once(self) -> None:
        """Step, and hold the outputs against the promises."""
        self.runner.poison(lost_blocks(self.engine))
        self.clock.now_s += 1
        outputs = self.engine.step()
        self.intrude = lambda batch: None
        self.receive(outputs)
        self.check()

    def receive(self, outputs: list[SequenceOutput]) -> None:
        """Promise 2: what is not live, no longer or not yet, has no outputs."""
        for output in outputs:
            promise = self.live[output.request_id]
            if output.error is None:
                promise.keep(output)
                self.count(promise)
            else:
                assert output.error.endswith(INJECTED), output.error
            if output.finish_reason is not None or output.error is not None:
                del self.live[output.request_id]

    def count(self, promise: Promise) -> None:
        self.generated_tokens += 1
        if promise.num_yielded == 1 and promise.started is not None:
            self.prompt_tokens += len(promise.request.prompt_token_ids)
            self.cached_tokens += promise.started[1]

    def inside(self, batch: StepBatch) -> None:
        """While the step runs: promise 6; then what this step has in store."""
        assert batch.num_tokens <= self.budget
        assert len(batch.sequences) <= self.engine.info.max_num_seqs
        planned = {share.request_id for share in batch.sequences}
        assert planned <= {sequence.request_id for sequence in running(self.engine)}
        for share in batch.sequences:
            promise = self.live[share.request_id]
            if promise.started is None:
                promise.started = self.clock.now_s, share.start
        self.intrude(batch)
        self.num_failed_in_a_row = 0

    def check(self) -> None:
        """Promises 1, 12 and 13."""
        self.engine.check_invariants()
        stats = self.engine.stats()
        assert stats.num_running <= self.engine.info.max_num_seqs
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert self.engine.has_work == bool(self.live)
        if not self.live:
            assert stats.num_free_blocks == stats.num_blocks
        self.check_salts()
        assert stats.prompt_tokens_total == self.prompt_tokens
        assert stats.generation_tokens_total == self.generated_tokens
        assert stats.prefix_cache_hits == self.cached_tokens
        looked_for = self.prompt_tokens if self.prefix_caching else 0
        assert stats.prefix_cache_queries == looked_for

    def check_salts(self) -> None:
        salts: dict[int, str] = {}
        for sequence in running(self.engine):
            salt = self.live[sequence.request_id].request.cache_salt
            for block in sequence.block_table:
                assert salts.setdefault(block, salt) == salt


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestEngineMachine = EngineMachine.TestCase
