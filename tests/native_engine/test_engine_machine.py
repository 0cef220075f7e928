"""Random traffic against the engine's promises, over random pools, budgets and queue sizes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from native_engine.engine import MAX_FAILED_STEPS
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.types import EngineRequest, FinishReason, SamplingParams, StepBatch
from tests.native_engine.harness import make_engine
from tests.native_engine.stub_runner import StubRunner, continuation

VOCAB_SIZE = 12  # small: eos and stop ids do come up
STEMS = tuple(tuple(random.Random(i).choices(range(VOCAB_SIZE), k=14)) for i in range(2))
PROMPTS = st.one_of(  # many begin alike
    st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=14).map(tuple),
    st.builds(
        lambda stem, length, tail: (*stem[:length], *tail),
        st.sampled_from(STEMS),
        st.integers(1, 14),
        st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2),
    ),
)
SALTS = st.sampled_from(["", "", "other"])
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 25),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
    eos_token_ids=st.sampled_from([(), (), (0,), (0, 1)]),
    stop_token_ids=st.sampled_from([(), (), (2,)]),
    ignore_eos=st.booleans(),
)


class EngineMachine(RuleBasedStateMachine):
    """Keeps what each accepted request must yield, and what it has yielded so far."""

    @initialize(
        num_blocks=st.integers(1, 16),
        block_size=st.integers(1, 4),
        max_model_len=st.integers(2, 40),
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
        self.max_num_tokens = min(max_model_len, num_blocks * block_size)
        self.max_num_seqs = max_num_seqs
        self.budget = max_num_seqs + spare_budget
        self.engine = make_engine(
            self.runner,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=max_waiting,
            prefix_caching=prefix_caching,
        )
        self.capacity = max_num_seqs + max_waiting
        self.ids = map(str, itertools.count())
        self.live: dict[str, tuple[list[int], FinishReason]] = {}  # what each must yield
        self.prompts: dict[str, int] = {}  # prompt lengths of the live
        self.yielded: dict[str, list[int]] = {}
        self.failed_in_a_row = 0

    @rule(requests=st.lists(st.tuples(PROMPTS, SAMPLING, SALTS), min_size=1, max_size=4))
    def add(self, requests: list[tuple[tuple[int, ...], SamplingParams, str]]) -> None:
        for prompt, sampling, salt in requests:
            self.add_one(prompt, sampling, salt)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 8), during_a_step=st.booleans())
    def abort(self, which: int, during_a_step: bool) -> None:
        request_id = list(self.live)[which % len(self.live)]
        del self.live[request_id]
        if during_a_step:
            self.runner.on_execute = lambda batch: self.engine.abort(request_id)
            self.step_once()
            self.runner.on_execute = lambda batch: None
        else:
            self.engine.abort(request_id)

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.step_once()
            self.books_balance()

    @precondition(lambda self: self.live and self.failed_in_a_row < MAX_FAILED_STEPS - 1)
    @rule()
    def fail(self) -> None:
        def explode(batch: StepBatch) -> None:
            self.runner.wipe(batch)  # what a failed step wrote is worth nothing
            raise RuntimeError("injected")

        self.runner.on_execute = explode
        outputs = self.engine.step()
        self.runner.on_execute = lambda batch: None
        self.failed_in_a_row += 1
        batch = self.runner.batches[-1]
        assert {o.request_id for o in outputs} == {s.request_id for s in batch.sequences}
        for output in outputs:
            assert output.error is not None
            del self.live[output.request_id]

    @invariant()
    def books_balance(self) -> None:
        self.engine.check_invariants()
        self.salts_share_nothing()
        stats = self.engine.stats()
        assert stats.num_running <= self.max_num_seqs
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert self.engine.has_work == bool(self.live)
        if not self.live:
            assert stats.num_free_blocks == stats.num_blocks

    def salts_share_nothing(self) -> None:
        salts: dict[int, str] = {}
        for sequence in self.engine._scheduler.running:
            salt = self.runner.requests[sequence.request_id].cache_salt
            for block in sequence.block_table:
                assert salts.setdefault(block, salt) == salt

    def teardown(self) -> None:
        """Whatever is left ends within a bound: no request waits for ever."""
        if not hasattr(self, "engine"):
            return
        work = sum(
            self.prompts[request_id] + len(tokens) for request_id, (tokens, _) in self.live.items()
        )
        bound = (len(self.live) + 1) * work  # each may have to wait for all the others' work
        steps = 0
        while self.engine.has_work:
            self.step_once()
            self.books_balance()
            steps += 1
            assert steps <= bound
        assert not self.live

    def add_one(self, prompt: tuple[int, ...], sampling: SamplingParams, salt: str) -> None:
        request_id = next(self.ids)
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=prompt, sampling=sampling, cache_salt=salt
        )
        if len(prompt) + 1 > self.max_num_tokens:
            with pytest.raises(RequestTooLong):
                self.engine.add(request)
        elif len(self.live) == self.capacity:
            with pytest.raises(QueueFull):
                self.engine.add(request)
        else:
            self.engine.add(request)
            self.runner.requests[request_id] = request
            self.live[request_id] = continuation(
                prompt, sampling, vocab_size=VOCAB_SIZE, max_num_tokens=self.max_num_tokens
            )
            self.prompts[request_id] = len(prompt)
            self.yielded[request_id] = []

    def step_once(self) -> None:
        """Step, and hold the outputs against what each request yields alone."""
        self.poison_free_blocks()
        had_work = self.engine.has_work
        outputs = self.engine.step()
        if had_work:
            self.failed_in_a_row = 0
            assert 1 <= self.runner.batches[-1].num_tokens <= self.budget
            assert len(self.runner.batches[-1].sequences) <= self.max_num_seqs
        for output in outputs:
            assert output.token is not None
            tokens, reason = self.live[output.request_id]
            yielded = self.yielded[output.request_id]
            yielded.append(output.token.token_id)
            assert yielded == tokens[: len(yielded)]
            assert (output.queue_s is not None) == (len(yielded) == 1)
            if len(yielded) == 1:
                assert output.cached_tokens is not None
                assert 0 <= output.cached_tokens < self.prompts[output.request_id]
            else:
                assert output.cached_tokens is None
            assert output.finish_reason == (reason if yielded == tokens else None)
            if output.finish_reason is not None:
                del self.live[output.request_id]

    def poison_free_blocks(self) -> None:
        """All but the cached: what nobody holds and nobody can find must not be read."""
        held = {block for s in self.engine._scheduler.running for block in s.block_table}
        cached = set(self.engine._scheduler._block_manager._blocks.values())
        self.runner.poison(set(range(self.runner.num_blocks)) - held - cached)


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase
