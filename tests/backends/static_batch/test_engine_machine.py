"""Any order of arrivals, aborts, failures and time: each answer is the lone run's or a part of it,
each request ends once, and the books balance.
"""

from __future__ import annotations

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from native_engine.errors import QueueFull
from native_engine.types import EngineRequest, FinishReason, StepBatch
from tests.backends.static_batch.making import drain_static, make_config, make_static
from tests.native_engine.harness import Clock, Transcript, expected, make_request


class StaticBatches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        config = make_config(max_waiting=4, batch_timeout_s=0.5)
        self.engine, self.runner = make_static(config, clock=self.clock)
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: set[str] = set()
        self.transcript = Transcript()
        self.num_failed_steps = 0  # in a row: with the third the engine would give up

    @rule(
        prompt=st.integers(1, 20),
        max_tokens=st.integers(0, 12),
        seed=st.integers(0, 3),
        eos=st.lists(st.integers(0, 49), max_size=8),
        timeout_s=st.none() | st.floats(0.1, 2.0),
    )
    def add(
        self, prompt: int, max_tokens: int, seed: int, eos: list[int], timeout_s: float | None
    ) -> None:
        request = make_request(
            f"r{len(self.requests)}",
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=float(seed > 0),
            seed=seed,
            eos=tuple(eos),
            timeout_s=timeout_s,
        )
        try:
            self.engine.add(request)
        except QueueFull:
            assert self.engine.stats().num_waiting >= 4
        else:
            self.requests[request.request_id] = request

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        ended = self.transcript.reasons.keys() | self.transcript.errors.keys() | self.aborted
        here = sorted(self.requests.keys() - ended)
        if here:
            chosen = data.draw(st.sampled_from(here))
            self.aborted.add(chosen)
            self.engine.abort(chosen)

    @rule(passed_s=st.floats(0.0, 1.0), fails=st.sampled_from([False] * 9 + [True]))
    def step(self, passed_s: float, fails: bool) -> None:
        self.clock.now_s += passed_s

        def fail(_: StepBatch) -> None:
            self.num_failed_steps += 1
            raise RuntimeError("out of memory")

        def succeed(_: StepBatch) -> None:
            self.num_failed_steps = 0

        self.runner.on_execute = fail if fails and self.num_failed_steps < 2 else succeed
        self.transcript.record(self.engine.step())
        self.runner.on_execute = succeed

    @invariant()
    def books_balance(self) -> None:
        self.engine.check_invariants()

    def teardown(self) -> None:
        self.clock.now_s += 1.0
        drain_static(self.engine, self.transcript)
        for request_id, request in self.requests.items():
            tokens, reason = expected(request, self.runner)
            found = self.transcript.tokens.get(request_id, [])
            assert found == tokens[: len(found)]
            if self.transcript.reasons.get(request_id) is reason:
                assert found == tokens
            else:
                is_cut = self.transcript.reasons.get(request_id) is FinishReason.DEADLINE
                assert is_cut or request_id in self.transcript.errors or request_id in self.aborted


TestStaticBatches = StaticBatches.TestCase
TestStaticBatches.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
