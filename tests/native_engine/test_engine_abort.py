"""Aborts in every state touch their own request only."""

from __future__ import annotations

import pytest

from native_engine.types import StepBatch
from tests.native_engine.harness import (
    Transcript,
    drain,
    expected,
    let_expect_short_outputs,
    make_engine,
    make_request,
)
from tests.native_engine.stub_runner import StubRunner


@pytest.mark.parametrize("steps", range(9))
def test_abort_at_any_step_frees_all_and_says_nothing_more(steps: int) -> None:
    """vLLM #46283: steps 0 to 8 cover waiting, mid-prefill, decoding and ended."""
    engine = make_engine(StubRunner(), max_num_batched_tokens=4)
    engine.add(make_request("a", prompt=10, max_tokens=4))
    for _ in range(steps):
        engine.step()
    engine.abort("a")
    engine.check_invariants()
    assert not engine.has_work
    assert engine.step() == []
    assert engine.stats().num_free_blocks == engine.info.num_blocks


@pytest.mark.parametrize("steps", range(7))
def test_what_a_request_holds_is_not_free_before_the_step_that_writes_it_is_done(
    steps: int,
) -> None:
    """vLLM-Ascend #14055: queued, in each chunk, in each decode; the last step ends it anyway."""
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=4)
    other = make_request("other", prompt=1, max_tokens=40)
    engine.add(other)
    engine.add(make_request("a", prompt=10, max_tokens=3))
    transcript = Transcript()
    for _ in range(steps):
        transcript.record(engine.step())
    free: list[int] = []

    def abort(batch: StepBatch) -> None:
        free.append(engine.stats().num_free_blocks)
        engine.abort("a")
        free.append(engine.stats().num_free_blocks)
        engine.check_invariants()

    runner.on_execute = abort
    transcript.record(engine.step())
    runner.on_execute = lambda batch: None
    assert free[0] == free[1]
    held = len(engine._sequences["other"].block_table)
    assert engine.stats().num_free_blocks == engine.info.num_blocks - held
    assert drain(engine, transcript).of("other") == expected(other, runner)


def test_abort_of_what_ended_in_the_step_but_was_not_delivered_yet_is_fine() -> None:
    """SGLang #6888: the blocks came back when it ended, and not twice."""
    engine = make_engine(StubRunner())
    engine.add(make_request("a", max_tokens=1))
    (output,) = engine.step()
    assert output.finish_reason is not None
    engine.abort("a")
    engine.check_invariants()
    assert engine.stats().num_free_blocks == engine.info.num_blocks


def test_abort_of_a_preempted_request_leaves_the_others_alone() -> None:
    runner = StubRunner(num_blocks=6, block_size=4)
    engine = make_engine(runner)
    let_expect_short_outputs(engine)
    stays, goes = make_request("stays", prompt=8, max_tokens=12), make_request("goes", prompt=8)
    engine.add(stays)
    engine.add(goes)
    transcript = Transcript()
    while not engine.stats().num_preemptions:
        transcript.record(engine.step())
    assert engine.stats().num_waiting == 1
    engine.abort("goes")
    drain(engine, transcript)
    assert transcript.of("stays") == expected(stays, runner)
    assert "goes" not in transcript.reasons


def test_abort_of_an_unknown_request_is_fine() -> None:
    engine = make_engine(StubRunner())
    engine.abort("nobody")
    assert not engine.has_work


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_abort_during_the_last_step_wins_over_its_result(max_tokens: int) -> None:
    """E-ABORT-LAST-STEP"""
    runner = StubRunner()
    engine = make_engine(runner)
    other = make_request("other", max_tokens=8)
    engine.add(make_request("a", max_tokens=max_tokens))
    engine.add(other)
    transcript = Transcript()
    for _ in range(max_tokens - 1):
        transcript.record(engine.step())
    runner.on_execute = lambda batch: engine.abort("a")
    transcript.record(engine.step())
    runner.on_execute = lambda batch: None
    assert "a" not in transcript.reasons
    assert len(transcript.tokens.get("a", [])) == max_tokens - 1
    assert drain(engine, transcript).of("other") == expected(other, runner)
    assert engine.stats().generation_tokens_total == max_tokens - 1 + 8


def test_an_id_aborted_during_a_step_and_added_again_starts_afresh() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    again = make_request("a", prompt=3)
    engine.add(make_request("a", prompt=9, max_tokens=1))

    def replace(batch: StepBatch) -> None:
        engine.abort("a")
        engine.add(again)

    runner.on_execute = replace
    assert engine.step() == []
    runner.on_execute = lambda batch: None
    assert drain(engine).of("a") == expected(again, runner)


@pytest.mark.parametrize("max_num_seqs", [1, 4])
def test_cancelling_others_never_touches_a_running_request(max_num_seqs: int) -> None:
    """S-CANCEL-CASCADE: others are cancelled while queued, in prefill and in decode."""
    runner = StubRunner(num_blocks=40, block_size=4)
    engine = make_engine(runner, max_num_seqs=max_num_seqs, max_waiting=30)
    request = make_request("a", max_tokens=100)
    engine.add(request)
    transcript = Transcript()
    for i in range(20):
        engine.add(make_request(f"other {i}", prompt=10 + i, max_tokens=50))
    for i in range(20):
        for _ in range(i % 4):
            transcript.record(engine.step())
        engine.abort(f"other {(i * 7) % 20}")
        engine.check_invariants()
    assert drain(engine, transcript).of("a") == expected(request, runner)
    assert set(transcript.reasons) == {"a"}


def test_a_request_that_leaves_the_queue_never_takes_a_prefill() -> None:
    """S-DISCONNECT-QUEUED"""
    runner = StubRunner()
    engine = make_engine(runner, max_num_seqs=1)
    for request_id in ("a", "b", "c"):
        engine.add(make_request(request_id, prompt=9))
    engine.step()
    engine.abort("b")
    engine.abort("c")
    assert engine.stats().num_waiting == 0
    drain(engine)
    assert engine.stats().prompt_tokens_total == 9
    assert {share.request_id for batch in runner.batches for share in batch.sequences} == {"a"}
