"""Random traffic against the engine's promises, over random pools, budgets and queue sizes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from native_engine.engine import MAX_FAILED_STEPS, Engine
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.types import EngineRequest, FinishReason, SamplingParams, StepBatch
from tests.native_engine.stub_runner import StubRunner, continuation

VOCAB_SIZE = 12  # small: eos and stop ids do come up


class EngineMachine(RuleBasedStateMachine):
    """Keeps what each accepted request must yield, and what it has yielded so far."""

    @initialize(
        num_blocks=st.integers(1, 14),
        block_size=st.integers(1, 5),
        max_model_len=st.integers(2, 40),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 12),
        max_waiting=st.integers(0, 4),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        spare_budget: int,
        max_waiting: int,
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
        self.engine = Engine(
            self.runner,
            model_id="stub",
            description="",
            dtype="",
            device="",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=self.budget,
            max_waiting=max_waiting,
            clock=lambda: 0.0,
        )
        self.capacity = max_num_seqs + max_waiting
        self.ids = map(str, itertools.count())
        self.live: dict[str, tuple[list[int], FinishReason]] = {}  # what each must yield
        self.prompts: dict[str, int] = {}  # prompt lengths of the live
        self.yielded: dict[str, list[int]] = {}
        self.failed_in_a_row = 0

    @rule(
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30).map(tuple),
        sampling=st.builds(
            SamplingParams,
            max_tokens=st.integers(1, 25),
            temperature=st.sampled_from([0.0, 1.0]),
            seed=st.integers(0, 3),
            eos_token_ids=st.sampled_from([(), (0,), (0, 1)]),
            stop_token_ids=st.sampled_from([(), (2,)]),
            ignore_eos=st.booleans(),
        ),
    )
    def add(self, prompt: tuple[int, ...], sampling: SamplingParams) -> None:
        request_id = next(self.ids)
        request = EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)
        if len(prompt) + 1 > self.max_num_tokens:
            with pytest.raises(RequestTooLong):
                self.engine.add(request)
        elif len(self.live) == self.capacity:
            with pytest.raises(QueueFull):
                self.engine.add(request)
        else:
            self.engine.add(request)
            self.live[request_id] = continuation(
                prompt, sampling, vocab_size=VOCAB_SIZE, max_num_tokens=self.max_num_tokens
            )
            self.prompts[request_id] = len(prompt)
            self.yielded[request_id] = []

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 8))
    def abort(self, which: int) -> None:
        request_id = self.pick(which)
        self.engine.abort(request_id)
        del self.live[request_id]

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.step_once()

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 8))
    def step_with_an_abort_under_way(self, which: int) -> None:
        request_id = self.pick(which)
        del self.live[request_id]
        self.runner.on_execute = lambda batch: self.engine.abort(request_id)
        self.step_once()
        self.runner.on_execute = lambda batch: None

    @precondition(lambda self: self.live and self.failed_in_a_row < MAX_FAILED_STEPS - 1)
    @rule()
    def fail(self) -> None:
        def explode(batch: StepBatch) -> None:
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
        stats = self.engine.stats()
        assert stats.num_running <= self.max_num_seqs
        assert stats.num_running + stats.num_waiting == len(self.live)
        assert self.engine.has_work == bool(self.live)
        if not self.live:
            assert stats.num_free_blocks == stats.num_blocks

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

    def pick(self, which: int) -> str:
        return list(self.live)[which % len(self.live)]

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
            assert output.finish_reason == (reason if yielded == tokens else None)
            if output.finish_reason is not None:
                del self.live[output.request_id]

    def poison_free_blocks(self) -> None:
        held = {block for s in self.engine._scheduler.running for block in s.block_table}
        self.runner.poison(set(range(self.runner.num_blocks)) - held)


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestEngineMachine = EngineMachine.TestCase
