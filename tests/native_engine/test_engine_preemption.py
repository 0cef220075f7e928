"""Preemption is invisible from outside, and bounded."""

from __future__ import annotations

import pytest

from native_engine.types import LogitRules
from tests.native_engine.harness import (
    Transcript,
    drain,
    expected,
    let_expect_short_outputs,
    make_engine,
    make_request,
)
from tests.native_engine.peeking import preempt, running
from tests.native_engine.stub_runner import StubRunner


@pytest.mark.parametrize("steps", range(1, 25))
def test_a_preemption_at_any_step_is_invisible(steps: int) -> None:
    """E-PREEMPT: greedy and seeded; the victim yields what it yields undisturbed."""
    runner = StubRunner(num_blocks=12, block_size=4)
    engine = make_engine(runner, max_num_batched_tokens=6)
    requests = [
        make_request("oldest", prompt=6, max_tokens=20),
        make_request("greedy", prompt=7, max_tokens=9),
        make_request(
            "seeded",
            prompt=8,
            max_tokens=9,
            temperature=1.0,
            seed=11,
            rules=LogitRules(presence_penalty=1.0),  # the stub checks the history it is shown
        ),
    ]
    transcript = Transcript()
    for request in requests:
        engine.add(request)
    for _ in range(steps):
        transcript.record(engine.step())
    for sequence in running(engine)[:0:-1]:  # all but the oldest, the newest first
        preempt(engine, sequence)
        engine.check_invariants()
    drain(engine, transcript)
    for request in requests:
        assert transcript.of(request.request_id) == expected(request, runner)


def test_a_crowded_pool_preempts_and_nobody_notices() -> None:
    """E-PREEMPT: 24 blocks of 16; six greedy and two seeded, 40 prompt + 120 output tokens."""
    runner = StubRunner(num_blocks=24, block_size=16)
    engine = make_engine(runner, max_num_seqs=8, max_num_batched_tokens=64)
    let_expect_short_outputs(engine)
    before = engine.stats()
    requests = [
        make_request(
            str(i),
            prompt=(i + 1,) * 40,
            max_tokens=120,
            temperature=float(i >= 6),
            seed=i,
        )
        for i in range(8)
    ]
    for request in requests:
        engine.add(request)
    transcript = drain(engine)
    for request in requests:
        assert transcript.of(request.request_id) == expected(request, runner)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.prompt_tokens_total - before.prompt_tokens_total == 8 * 40
    assert stats.generation_tokens_total - before.generation_tokens_total == 8 * 120


@pytest.mark.parametrize(("num_blocks", "num_preemptions"), [(20, 0), (21, 1), (26, 1), (32, 0)])
def test_two_long_requests_do_not_push_each_other_out_for_ever(
    num_blocks: int, num_preemptions: int
) -> None:
    """E-PREEMPT-THRASH: chunks of 32 tokens, blocks of 16, twice 150 + 100 tokens."""
    runner = StubRunner(num_blocks=num_blocks, block_size=16, max_model_len=400)
    engine = make_engine(runner, max_num_batched_tokens=32)
    let_expect_short_outputs(engine)
    for i in (1, 2):
        engine.add(make_request(str(i), prompt=(i,) * 150, max_tokens=100))
    drain(engine)
    assert engine.stats().num_preemptions == num_preemptions
    assert runner.num_tokens_computed < 1.5 * 2 * 250
