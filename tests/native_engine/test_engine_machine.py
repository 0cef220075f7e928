"""Random traffic against the engine's promises, over random pools, budgets and queue sizes.

Several tenants with weights, classes, deadlines and families of forked choices; the clock goes on
by what a step computes. The promises, by their numbers in the tests of this folder:

1. Conservation: whatever is added, aborted, preempted, expires or fails, and when, the books
   balance after every step, and an idle engine has all its blocks (SGLang #6888, vLLM #46283).
2. Every accepted request ends exactly once, at its deadline at the latest, and an aborted one says
   nothing more.
3. A greedy request yields the same tokens whatever its neighbours, arrival order, token budget,
   block size, cache and preemptions.
4. So does a seeded one.
5. Choices of one prompt yield what lone requests with their seeds yield.
6. No step exceeds the token budget or the number of sequences, or plans what it has preempted.
7. What was accepted ends within a bounded number of steps; each step brings the first in order on;
   what can never run is refused at once.
8. A class goes before a higher one only by its age, and a head of line is passed `max_bypass` times
   at most.
9. Tenants that always wait get tokens by their weights, within a bound.
10. Text is streamed whole and cut at stops exactly.
11. What is constrained by a grammar keeps to it. There are no grammars yet.
12. Sequences under different salts share no block.
13. Counters and usage are what was handed out, to the token.
14. Log-probabilities of a prompt come whole and once, with the first output, and computing them
    takes nothing from a cache or a parent.

Who holds which, beside this machine:

| promise | here | on a real model, bit for bit | alone |
|---|---|---|---|
| 1, 2 | `check`, `receive`, `receive_ends` | `test_random_schedules` | `test_engine_abort` |
| 3, 4 | `Promise.keep` | `test_random_schedules` | `test_engine_preemption`, `test_noise` |
| 5 | `Promise.keep`, `begin` | `test_fork_bits` | `test_engine_fork` |
| 6 | `inside` | | `test_scheduler` |
| 7 | `teardown`, `submit`, `check_progress`, `turns` | | `test_scheduler_properties` |
| 8 | `turns` | | `test_scheduler_properties`, `test_engine_classes` |
| 9 | | | `test_fairness` |
| 10 | | | `tests/backends/text` |
| 12 | `check_salts`, `StubRunner` | `test_random_schedules` | `test_engine_prefix_cache` |
| 13 | `count`, `check` | | `test_engine` |
| 14 | `Promise.keep`, `begin` | `test_random_schedules` | `test_engine_prompt_logprobs` |
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from native_engine.answering import MAX_FAILED_STEPS
from native_engine.chunking import MIN_CHUNK
from native_engine.engine import MIN_RETRY_AFTER_S
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.sequence import Sequence
from native_engine.types import (
    EngineRequest,
    FinishReason,
    ScheduledSequence,
    SequenceOutput,
    StepBatch,
)
from tests.native_engine.harness import Clock, expected, make_engine
from tests.native_engine.peeking import in_line, lost_blocks, preempt, running
from tests.native_engine.stub_runner import StubRunner, prompt_logprobs
from tests.native_engine.traffic import VOCAB_SIZE, Family, Moment, families_of, moments_of
from tests.native_engine.turns import Turns

ODDS = (  # in 256
    ("arrive", 32),
    ("preempt", 12),
    ("abort", 4),
    ("abort inside", 4),
    ("pause", 2),
    ("fail", 1),
)
INJECTED = "injected"
STEP_S, TOKEN_S = 0.05, 0.01  # what a step takes, and each token in it
WORKLOADS = st.binary(min_size=120, max_size=240).map(families_of)
MOMENTS = st.binary(min_size=60, max_size=120).map(lambda raw: moments_of(raw, ODDS))


@dataclass(slots=True)
class Promise:
    """What a live request must yield, and how far it has come."""

    request: EngineRequest
    tokens: list[int]
    reason: FinishReason
    added_s: float
    num_yielded: int = 0
    started_s: float | None = None  # when it was first computed
    num_cached: int | None = None  # of its prompt, when it first got in
    is_forked: bool = False

    @property
    def deadline_s(self) -> float:
        timeout_s = self.request.timeout_s
        return math.inf if timeout_s is None else self.added_s + timeout_s

    @property
    def work(self) -> int:
        """Tokens to compute, if none is lost."""
        return len(self.request.prompt_token_ids) + len(self.tokens)

    @property
    def asks(self) -> bool:
        """Whether it wants log-probabilities of its prompt."""
        return self.request.sampling.num_prompt_logprobs is not None

    def keep(self, output: SequenceOutput) -> None:
        """Hold an output against it: promises 3, 4, 13 and 14."""
        drawn = [] if output.token is None else [output.token.token_id]
        assert drawn == self.tokens[self.num_yielded : self.num_yielded + 1]
        if self.num_yielded == 0:
            assert self.started_s is not None
            assert output.queue_s == self.started_s - self.added_s
            assert output.cached_tokens == self.num_cached
            told = prompt_logprobs(self.request.prompt_token_ids) if self.asks else None
            assert output.prompt_logprobs == told
        else:
            told_again = (output.queue_s, output.cached_tokens, output.prompt_logprobs)
            assert told_again == (None, None, None)
        self.num_yielded += 1
        is_last = self.num_yielded >= len(self.tokens)
        assert output.finish_reason == (self.reason if is_last else None)


class Options(TypedDict):
    """Of the scheduler."""

    max_waiting_tokens: int
    max_bypass: int
    aging_s: float
    target_itl_s: float


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
        options=st.fixed_dictionaries(
            {
                "max_waiting_tokens": st.sampled_from([0, 0, 20, 40]),
                "max_bypass": st.integers(0, 3),
                "aging_s": st.sampled_from([0.3, 3.0, 1e9]),
                "target_itl_s": st.sampled_from([0.0, 0.1, 0.3]),
            }
        ),
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
        options: Options,
    ) -> None:
        self.runner = StubRunner(
            num_blocks=num_blocks,
            block_size=block_size,
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
        )
        self.clock = Clock()
        self.started_s = 0.0  # the last step; the scheduler knows of no time before the first
        self.budget = max_num_seqs + spare_budget
        self.engine = make_engine(
            self.runner,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=max_waiting,
            clock=self.clock,
            prefix_caching=prefix_caching,
            **options,
        )
        self.turns = Turns(
            self.engine, max_bypass=options["max_bypass"], aging_s=options["aging_s"]
        )
        self.max_waiting_tokens = options["max_waiting_tokens"]
        self.prefix_caching = prefix_caching
        self.max_num_tokens = min(max_model_len, num_blocks * block_size)
        self.is_sound = True
        self.runner.on_execute = self.inside
        self.intrude: Callable[[StepBatch], None] = lambda batch: None
        self.ids = map(str, itertools.count())
        self.coming: deque[EngineRequest] = deque()
        self.live: dict[str, Promise] = {}
        self.num_failed_in_a_row = self.num_expired = 0
        self.prompt_tokens = self.generated_tokens = self.cached_tokens = 0
        self.looked_for_tokens = 0  # in the cache
        self.happenings: dict[str, Callable[[int], None]] = {
            "step": self.step_plainly,
            "arrive": self.step_after_arrivals,
            "preempt": self.step_after_a_preemption,
            "abort": self.step_after_an_abort,
            "abort inside": self.step_with_an_abort_inside,
            "fail": self.step_that_fails,
            "pause": self.step_after_a_pause,
        }

    @rule(families=WORKLOADS, moments=MOMENTS)
    def run(self, families: list[Family], moments: list[Moment]) -> None:
        """The requests come at moments that say so, at the latest when there is no other work."""
        self.is_sound = False
        for family in families:
            self.announce(family)
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

    def announce(self, family: Family) -> None:
        """They come one after the other, the others perhaps when the first has gone."""
        first, *others = (replace(request, request_id=next(self.ids)) for request in family)
        self.coming.append(first)
        self.coming.extend(replace(request, fork_of=first.request_id) for request in others)

    def let_come(self, count: int) -> None:
        for _ in range(min(count, len(self.coming))):
            self.submit(self.coming.popleft())
        self.turns.look(self.clock.now_s)

    def submit(self, request: EngineRequest) -> None:
        """Promise 7, its second half: a refusal comes at once, and says which."""
        if len(request.prompt_token_ids) + 1 > self.max_num_tokens:
            with pytest.raises(RequestTooLong):
                self.engine.add(request)
        elif self.is_full_for(request):
            with pytest.raises(QueueFull) as refusal:
                self.engine.add(request)
            assert refusal.value.retry_after_s is not None
            assert MIN_RETRY_AFTER_S <= refusal.value.retry_after_s < math.inf
        else:
            self.engine.add(request)
            self.runner.requests[request.request_id] = request
            tokens, reason = expected(request, self.runner)
            self.live[request.request_id] = Promise(request, tokens, reason, self.clock.now_s)

    def is_full_for(self, request: EngineRequest) -> bool:
        """By requests, or by prompt tokens in line: a family's prompt counts once, and again for
        each who asks about it.
        """
        if len(self.live) == self.engine.info.max_num_seqs + self.engine.info.max_waiting:
            return True
        queued = sum(
            len(self.live[s.request_id].request.prompt_token_ids) for s in in_line(self.engine)
        )
        asks = request.sampling.num_prompt_logprobs is not None
        is_computed = asks or request.fork_of not in self.live
        own = len(request.prompt_token_ids) if is_computed else 0
        return 0 < self.max_waiting_tokens < queued + own and queued > 0

    def step_plainly(self, which: int) -> None:
        self.step_once()

    def step_after_arrivals(self, which: int) -> None:
        self.let_come(1 + which % 6)
        self.step_once()

    def step_after_a_preemption(self, which: int) -> None:
        sequences = running(self.engine)
        if sequences:
            preempt(self.engine, sequences[which % len(sequences)])
            self.turns.look(self.started_s)  # it waits as if since the last step
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

    def step_after_a_pause(self, which: int) -> None:
        self.clock.now_s += 2.0
        self.step_once()

    def abort(self, which: int) -> None:
        if not self.live:  # all that was left has just ended at its deadline
            return
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
        self.started_s = now_s = self.clock.now_s
        overdue = {name for name, promise in self.live.items() if promise.deadline_s <= now_s}
        for name in overdue:
            del self.live[name]
        self.turns.before_step(now_s)
        outputs = self.engine.step()
        self.intrude = lambda batch: None
        self.receive_ends(outputs[: len(overdue)], overdue)
        self.receive(outputs[len(overdue) :])
        self.check()

    def receive_ends(self, outputs: list[SequenceOutput], overdue: set[str]) -> None:
        """Promise 2: what is out of time ends at once, all of it, without a token."""
        assert {output.request_id for output in outputs} == overdue
        for output in outputs:
            assert output == SequenceOutput(
                request_id=output.request_id, finish_reason=FinishReason.DEADLINE
            )
        self.num_expired += len(overdue)

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
        self.generated_tokens += bool(promise.tokens)
        if promise.num_yielded == 1 and not promise.is_forked:
            assert promise.num_cached is not None
            num_tokens = len(promise.request.prompt_token_ids)
            self.prompt_tokens += num_tokens
            self.cached_tokens += promise.num_cached
            if self.prefix_caching and not promise.asks:
                self.looked_for_tokens += num_tokens

    def inside(self, batch: StepBatch) -> None:
        """While the step runs: promises 6 and 8; then what this step has in store."""
        self.clock.now_s += STEP_S + TOKEN_S * batch.num_tokens
        self.turns.inside_step(self.started_s)
        assert batch.num_tokens <= self.budget
        assert len(batch.sequences) <= self.engine.info.max_num_seqs
        planned = {share.request_id: share for share in batch.sequences}
        sequences = running(self.engine)
        assert planned.keys() <= {sequence.request_id for sequence in sequences}
        self.check_progress(sequences, planned)
        for sequence in sequences:
            promise = self.live[sequence.request_id]
            if promise.num_cached is None:
                self.begin(promise, sequence)
            if promise.started_s is None and sequence.request_id in planned:
                promise.started_s = self.started_s
        self.intrude(batch)
        self.num_failed_in_a_row = 0

    def check_progress(
        self, sequences: list[Sequence], planned: dict[str, ScheduledSequence]
    ) -> None:
        """Promise 7: all that are being answered get a token, and the first of the others a
        chunk of its prompt at least, or what the decodes leave of the budget.
        """
        prefills = [s for s in sequences if s.num_uncomputed_tokens > 1]
        left = self.budget - (len(sequences) - len(prefills))
        for sequence in sequences:
            if sequence.num_uncomputed_tokens == 1:
                assert sequence.request_id in planned
        if prefills:
            first = prefills[0]
            least = min(MIN_CHUNK, first.num_uncomputed_tokens, left)
            share = planned.get(first.request_id)
            assert (len(share.token_ids) if share else 0) >= least

    def begin(self, promise: Promise, sequence: Sequence) -> None:
        """Promise 5: a fork has all but the last token of a prompt that is its own. Promise 14:
        who asks about a prompt begins with nothing.
        """
        computed = sequence.num_computed_tokens
        assert not promise.asks or (computed, sequence.is_forked) == (0, False)
        promise.is_forked = sequence.is_forked
        if sequence.is_forked:
            assert promise.request.fork_of is not None
            assert computed == len(promise.request.prompt_token_ids) - 1
            promise.num_cached = 0
        else:
            assert computed == 0 or self.prefix_caching
            assert computed % self.runner.block_size == 0
            promise.num_cached = computed

    def check(self) -> None:
        """Promises 1, 12 and 13."""
        self.engine.check_invariants()
        self.turns.look(self.clock.now_s)
        stats = self.engine.stats()
        assert stats.num_running <= self.engine.info.max_num_seqs
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert self.engine.has_work == bool(self.live)
        if not self.live:
            assert stats.num_free_blocks == stats.num_blocks
        self.check_salts()
        assert stats.num_expired == self.num_expired
        assert stats.prompt_tokens_total == self.prompt_tokens
        assert stats.generation_tokens_total == self.generated_tokens
        assert stats.prefix_cache_hits == self.cached_tokens
        assert stats.prefix_cache_queries == self.looked_for_tokens

    def check_salts(self) -> None:
        salts: dict[int, str] = {}
        for sequence in running(self.engine):
            salt = self.live[sequence.request_id].request.cache_salt
            for block in sequence.block_table:
                assert salts.setdefault(block, salt) == salt


EngineMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestEngineMachine = EngineMachine.TestCase
