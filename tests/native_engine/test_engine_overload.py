"""What there is no room to queue is refused at once, with a time after which there may be."""

from __future__ import annotations

import pytest

from native_engine.engine import MIN_RETRY_AFTER_S, UNMEASURED_RETRY_AFTER_S, Engine
from native_engine.errors import QueueFull, RequestTooLong
from native_engine.types import StepBatch
from tests.native_engine.harness import Clock, drain, make_engine, make_request
from tests.native_engine.stub_runner import StubRunner


def refused(engine: Engine, *, prompt: int = 1) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        engine.add(make_request("refused", prompt=prompt))
    engine.check_invariants()
    return caught.value


def ticking(clock: Clock, runner: StubRunner, *, seconds_per_token: float) -> None:
    def take_time(batch: StepBatch) -> None:
        clock.now_s += seconds_per_token * batch.num_tokens

    runner.on_execute = take_time


def test_refuses_more_prompt_tokens_than_may_queue() -> None:
    engine = make_engine(StubRunner(), max_num_seqs=1, max_waiting=100, max_waiting_tokens=20)
    engine.add(make_request("runs", prompt=15))
    engine.step()
    engine.add(make_request("waits", prompt=15))
    error = refused(engine, prompt=6)
    assert str(error) == (
        "prompts of 15 tokens are waiting, of 20 that may; there is no room for one of 6; "
        "try again later"
    )
    engine.add(make_request("just fits", prompt=5))
    engine.abort("waits")
    engine.add(make_request("fits again", prompt=15))
    drain(engine)


def test_a_prompt_above_the_limit_waits_if_it_waits_alone() -> None:
    engine = make_engine(StubRunner(vocab_size=200), max_waiting_tokens=20)
    engine.add(make_request("long", prompt=60))
    refused(engine)
    assert len(drain(engine).tokens["long"]) == 6


def test_what_can_never_run_is_refused_as_such_even_if_the_queue_is_full() -> None:
    """E-KV-TOO-LONG: the client must not come back."""
    engine = make_engine(StubRunner(max_model_len=12), max_num_seqs=1, max_waiting=0)
    engine.add(make_request("runs"))
    with pytest.raises(RequestTooLong):
        engine.add(make_request("long", prompt=12))


def test_says_something_sane_before_anything_was_measured() -> None:
    engine = make_engine(StubRunner(), max_num_seqs=1, max_waiting=0)
    engine.add(make_request("runs"))
    assert refused(engine).retry_after_s == UNMEASURED_RETRY_AFTER_S


def test_the_time_is_that_of_the_work_ahead_at_the_pace_of_the_last_steps() -> None:
    """At 0.5 s per token, one decode has 20 tokens to go; its place is what is missing."""
    clock, runner = Clock(), StubRunner()
    ticking(clock, runner, seconds_per_token=0.5)
    engine = make_engine(runner, max_num_seqs=1, max_waiting=0, clock=clock)
    engine.add(make_request("runs", prompt=5, max_tokens=21))
    engine.step()
    assert refused(engine).retry_after_s == pytest.approx(0.5 * (1 + 20))
    for _ in range(19):
        engine.step()
    assert refused(engine).retry_after_s == pytest.approx(0.5 * (1 + 1))
    drain(engine)


def test_a_long_queue_makes_the_time_longer_only_if_much_of_it_has_to_go() -> None:
    """A place is free when the first of many ends; room for a long prompt when as many tokens
    have gone.
    """
    clock, runner = Clock(), StubRunner(num_blocks=100, vocab_size=200)
    ticking(clock, runner, seconds_per_token=0.5)
    engine = make_engine(
        runner, max_num_seqs=1, max_waiting=100, max_waiting_tokens=100, clock=clock
    )
    engine.add(make_request("runs", prompt=5, max_tokens=100))
    engine.step()
    for index in range(10):
        engine.add(make_request(str(index), prompt=10, max_tokens=1))
    all_s = 0.5 * engine._scheduler.expected_tokens()
    assert refused(engine, prompt=1).retry_after_s == pytest.approx(all_s / 100)
    assert refused(engine, prompt=50).retry_after_s == pytest.approx(all_s / 2)
    assert refused(engine, prompt=150).retry_after_s == pytest.approx(all_s)


def test_never_invites_a_client_back_at_once() -> None:
    clock, runner = Clock(), StubRunner()
    ticking(clock, runner, seconds_per_token=1e-6)
    engine = make_engine(runner, max_num_seqs=1, max_waiting=0, clock=clock)
    engine.add(make_request("runs", max_tokens=5))
    engine.step()
    assert refused(engine).retry_after_s == MIN_RETRY_AFTER_S
