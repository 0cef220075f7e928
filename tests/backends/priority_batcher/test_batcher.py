"""The batcher's promises, one by one, over a runner without a model."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest

from backends.priority_batcher.batcher import PriorityBatcher
from native_engine.answering import MAX_FAILED_STEPS
from native_engine.engine import UNMEASURED_RETRY_AFTER_S
from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    SequenceOutput,
    StepBatch,
)
from tests.backends.priority_batcher.harness import admission_log, drain, make_batcher
from tests.native_engine.harness import Clock, Transcript, expected, make_request
from tests.native_engine.stub_runner import StubRunner, prompt_logprobs

COUNTED = LogitRules(presence_penalty=1.0)  # so that the runner checks the history


def add_all(batcher: PriorityBatcher, *requests: EngineRequest) -> None:
    for request in requests:
        batcher.add(request)


def passes(runner: StubRunner) -> list[dict[str, int]]:
    """Who computed how many tokens, pass by pass."""
    return [
        {share.request_id: len(share.token_ids) for share in batch.sequences}
        for batch in runner.batches
    ]


def fail_next(runner: StubRunner) -> None:
    def explode(batch: StepBatch) -> None:
        runner.wipe(batch)
        runner.on_execute = lambda batch: None
        raise RuntimeError("injected")

    runner.on_execute = explode


def test_running_ones_pause_for_a_prefill_and_decode_together_after_it() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, prefix_caching=False)
    batcher.add(make_request("a", max_tokens=4))
    batcher.step()
    batcher.add(make_request("b", prompt=7, max_tokens=2))

    drain(batcher)

    assert passes(runner) == [{"a": 5}, {"b": 7}, {"a": 1, "b": 1}, {"a": 1}, {"a": 1}]


def test_nobody_pauses_twice_in_a_row() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, prefix_caching=False)
    batcher.add(make_request("a", max_tokens=5))
    batcher.step()
    for name in ("b", "c"):
        batcher.add(make_request(name, max_tokens=3))
        batcher.step()
    batcher.step()

    assert passes(runner) == [{"a": 5}, {"b": 5}, {"a": 1, "b": 1}, {"c": 5}]


def test_a_batch_does_not_pause_for_few_until_they_have_waited_long_enough() -> None:
    """`waiting_served_ratio` and `max_waiting_tokens`: 4 run, and 2 would be enough."""
    runner = StubRunner()
    batcher = make_batcher(
        runner, waiting_served_ratio=0.5, max_waiting_tokens=4, prefix_caching=False
    )
    add_all(batcher, *(make_request(name, max_tokens=20) for name in "abcd"))
    batcher.step()
    batcher.add(make_request("e", max_tokens=20))
    for _ in range(3):
        batcher.step()
    assert batcher.stats().num_waiting == 1
    batcher.step()
    assert passes(runner)[-1] == {"e": 5}

    batcher.step()
    add_all(batcher, make_request("f"), make_request("g"))
    batcher.step()
    assert passes(runner)[-1] == {"f": 5, "g": 5}


def test_a_place_that_is_free_is_taken_though_others_still_run() -> None:
    """E-QUEUE-LATCH."""
    runner = StubRunner(num_blocks=8)
    batcher = make_batcher(runner, prefix_caching=False)
    for name, max_tokens in (("a", 2), ("b", 9), ("c", 2), ("d", 5)):
        batcher.add(make_request(name, prompt=4, max_tokens=max_tokens))
    for _ in range(3):
        batcher.step()

    three = {"a", "b", "c"}
    assert [set(one) for one in passes(runner)] == [three, three, {"d"}]


def test_with_chunking_prefills_and_decodes_are_one_pass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    runner = StubRunner()
    batcher = make_batcher(
        runner,
        chunking=True,
        max_batch_prefill_tokens=8,
        waiting_served_ratio=9.0,
        prefix_caching=False,
    )
    assert [record.message for record in caplog.records] == [
        "with chunking, waiting_served_ratio is not used, and max_waiting_tokens only for the age "
        "of classes"
    ]
    batcher.add(make_request("a", max_tokens=6))
    batcher.step()
    add_all(batcher, make_request("b", prompt=17, max_tokens=2), make_request("c", max_tokens=1))

    drain(batcher)

    assert passes(runner) == [
        {"a": 5},
        {"a": 1, "b": 8},  # 7 are left, which is 8 in whole blocks
        {"a": 1, "b": 7},
        {"a": 1, "b": 2, "c": 5},
        {"a": 1, "b": 1},
        {"a": 1},
    ]


def test_a_prompt_in_part_goes_on_though_decodes_fill_the_budget() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, chunking=True, max_batch_prefill_tokens=2)
    for name in "abc":
        batcher.add(make_request(name, prompt=3, max_tokens=30))
        batcher.step()

    transcript = drain(batcher)

    assert len(transcript.reasons) == 3


def test_who_runs_keeps_its_blocks_to_its_end() -> None:
    """No preemption: what does not fit waits, though its prompt would fit."""
    runner = StubRunner(num_blocks=5, block_size=4)
    batcher = make_batcher(runner)
    add_all(batcher, make_request("a", prompt=4, max_tokens=9), make_request("b", max_tokens=6))

    drain(batcher)

    order = ["a" if "a" in one else "b" for one in passes(runner)]
    assert order == ["a"] * 9 + ["b"] * 6


def test_an_answer_longer_than_a_reservation_goes_on_behind_the_others() -> None:
    """A seeded one with rules that look back; the client sees one answer."""
    runner = StubRunner()
    batcher = make_batcher(runner, default_generation_length=4, max_batch_size=1)
    long = make_request("long", max_tokens=10, temperature=1.0, seed=7, rules=COUNTED)
    others = [make_request(name, max_tokens=2, prompt=(1, int(name))) for name in "23"]
    with admission_log() as log:
        add_all(batcher, long, *others)
        transcript = drain(batcher)

    assert [names for _, names in log] == [["long"], ["2"], ["3"], ["long"], ["long"]]
    for request in (long, *others):
        assert transcript.of(request.request_id) == expected(request, runner)
    assert transcript.cached_tokens == {"long": 0, "2": 0, "3": 0}
    assert batcher.stats().prompt_tokens_total == 5 + 2 + 2
    assert batcher.stats().generation_tokens_total == 10 + 2 + 2


def test_going_on_costs_no_more_than_what_the_cache_has_lost() -> None:
    runner = StubRunner()
    for caches, num_computed in ((True, 5 + 3 + 1 + 3), (False, 5 + 3 + 9 + 3)):
        batcher = make_batcher(runner, default_generation_length=4, prefix_caching=caches)
        runner.batches.clear()
        batcher.add(make_request("a", max_tokens=8))
        drain(batcher)
        assert runner.num_tokens_computed == num_computed


def test_a_prompt_too_long_to_come_back_has_its_whole_answer_reserved() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, default_generation_length=4, max_batch_prefill_tokens=8)
    with admission_log() as log:
        batcher.add(make_request("a", prompt=5, max_tokens=30))
        drain(batcher)
    assert [names for _, names in log] == [["a"]]


def test_a_failing_prefill_ends_those_it_was_for_and_no_others() -> None:
    """E-ENGINE-STEP-ERROR."""
    runner = StubRunner()
    batcher = make_batcher(runner)
    first = make_request("first", max_tokens=6)
    batcher.add(first)
    transcript = Transcript()
    transcript.record(batcher.step())
    add_all(batcher, make_request("a"), make_request("b"))
    fail_next(runner)
    transcript.record(batcher.step())
    batcher.check_invariants()

    assert set(transcript.errors) == {"a", "b"}
    assert transcript.errors["a"] == "the forward pass failed: RuntimeError: injected"
    drain(batcher, transcript)
    assert transcript.of("first") == expected(first, runner)


def test_a_failing_decode_ends_all_that_run_and_the_queue_lives_on() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, max_batch_size=2)
    waiting = make_request("waiting")
    add_all(batcher, make_request("a"), make_request("b"), waiting)
    transcript = Transcript()
    transcript.record(batcher.step())
    fail_next(runner)
    transcript.record(batcher.step())
    drain(batcher, transcript)

    assert set(transcript.errors) == {"a", "b"}
    assert transcript.of("waiting") == expected(waiting, runner)


def test_with_chunking_a_failing_pass_ends_all_that_run() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, chunking=True, max_batch_prefill_tokens=8)
    batcher.add(make_request("a"))
    batcher.step()
    batcher.add(make_request("b", prompt=20))
    fail_next(runner)
    assert {output.request_id for output in batcher.step()} == {"a", "b"}
    drain(batcher)


def test_gives_up_when_one_pass_after_the_other_fails() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner, max_batch_size=1)
    add_all(batcher, *(make_request(name) for name in "abcd"))
    for _ in range(MAX_FAILED_STEPS - 1):
        fail_next(runner)
        (output,) = batcher.step()
        assert output.error is not None
    fail_next(runner)
    with pytest.raises(EngineError, match="3 steps in a row: the forward pass failed: RuntimeErr"):
        batcher.step()


def test_one_more_than_may_be_here_is_refused_at_once() -> None:
    """G-LOAD-DROP: with a moment to come back."""
    runner, clock = StubRunner(), Clock()
    batcher = make_batcher(runner, max_concurrent_requests=2, clock=clock)
    runner.on_execute = lambda batch: setattr(clock, "now_s", clock.now_s + 1.0)
    add_all(batcher, make_request("a", max_tokens=9), make_request("b", max_tokens=9))
    with pytest.raises(QueueFull, match="2 requests are here, of 2") as refusal:
        batcher.add(make_request("c"))
    assert refusal.value.retry_after_s == UNMEASURED_RETRY_AFTER_S
    batcher.step()
    with pytest.raises(QueueFull) as refusal:
        batcher.add(make_request("c"))
    assert refusal.value.retry_after_s == pytest.approx((18 / 2) / 10)  # 10 tokens took a second

    batcher.abort("a")
    batcher.add(make_request("c"))
    drain(batcher)


def test_refuses_at_once_what_could_never_run() -> None:
    """E-KV-TOO-LONG, I-EMPTY-PROMPT, I-STOP-IDS-OOV."""
    batcher = make_batcher(StubRunner(), max_input_tokens=10, max_total_tokens=20)
    info = batcher.info
    assert (info.max_input_tokens, info.max_model_len) == (10, 20)
    with pytest.raises(RequestTooLong, match="takes at most 10"):
        batcher.add(make_request("a", prompt=11))
    with pytest.raises(RequestTooLong):
        batcher.add(make_request("a", prompt=20))
    with pytest.raises(EngineError, match="the prompt is empty"):
        batcher.add(make_request("a", prompt=0))
    with pytest.raises(InvalidTokenId):
        batcher.add(make_request("a", stop=(50,)))
    assert not batcher.has_work

    batcher.add(make_request("a", prompt=10, max_tokens=100))
    with pytest.raises(DuplicateRequest):
        batcher.add(make_request("a"))
    assert len(drain(batcher).tokens["a"]) == 10  # cut to what is left


def test_tells_how_many_may_be_here_and_run() -> None:
    info = make_batcher(StubRunner(), max_concurrent_requests=9, max_batch_size=4).info
    assert (info.max_num_seqs, info.max_waiting) == (4, 5)
    assert make_batcher(StubRunner()).info.max_input_tokens == 0  # the context says it


@pytest.mark.parametrize("name", ["running", "paused", "in part", "waiting", "unknown"])
def test_an_abort_ends_one_request_in_any_state(name: str) -> None:
    """S-CANCEL-CASCADE, S-DISCONNECT-QUEUED."""
    runner = StubRunner()
    in_part = name == "in part"
    batcher = make_batcher(
        runner, chunking=in_part, max_batch_prefill_tokens=8 if in_part else 0, max_batch_size=2
    )
    requests = {
        first: make_request(first, prompt=20 if first == "in part" else 5)
        for first in (["running", "in part", "waiting"] if in_part else ["running", "paused"])
    }
    requests.setdefault("waiting", make_request("waiting"))
    transcript = Transcript()
    for request in requests.values():
        batcher.add(request)
        transcript.record(batcher.step())

    batcher.abort(name)
    batcher.check_invariants()
    drain(batcher, transcript)

    requests.pop(name, None)
    for request in requests.values():
        assert transcript.of(request.request_id) == expected(request, runner)
    assert name not in transcript.reasons


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_an_abort_while_a_pass_runs_leaves_nothing(max_tokens: int) -> None:
    """E-ABORT-LAST-STEP."""
    runner = StubRunner()
    batcher = make_batcher(runner)
    add_all(batcher, make_request("a", max_tokens=max_tokens), make_request("b"))
    runner.on_execute = lambda batch: batcher.abort("a")

    transcript = drain(batcher)

    assert set(transcript.reasons) == {"b"}
    assert "a" not in transcript.tokens


def test_what_is_out_of_time_ends_as_it_stands_running_or_waiting() -> None:
    runner, clock = StubRunner(), Clock()
    batcher = make_batcher(runner, clock=clock, max_batch_size=1)
    add_all(
        batcher,
        make_request("a", timeout_s=2.0, max_tokens=90),
        make_request("b", timeout_s=2.0),
        make_request("c"),
    )
    transcript = Transcript()
    transcript.record(batcher.step())
    clock.now_s += 2.0
    outputs = batcher.step()
    transcript.record(outputs)

    ends = [SequenceOutput(request_id=n, finish_reason=FinishReason.DEADLINE) for n in "ab"]
    assert outputs[:2] == ends
    assert batcher.stats().num_expired == 2
    drain(batcher, transcript)
    assert transcript.reasons["c"] is FinishReason.LENGTH


@pytest.mark.parametrize("options", [{}, {"chunking": True, "max_batch_prefill_tokens": 4}])
def test_log_probabilities_of_a_prompt_come_whole_and_once(options: dict[str, Any]) -> None:
    """E-PREFIX-PROMPT-LOGPROBS: though its prompt is cached, and its answer goes on."""
    runner = StubRunner()
    batcher = make_batcher(runner, default_generation_length=3, **options)
    batcher.add(make_request("warm", prompt=13))
    drain(batcher)
    batcher.add(make_request("asks", prompt=13, max_tokens=8, num_prompt_logprobs=0))

    transcript = drain(batcher)

    assert transcript.prompt_logprobs["asks"] == prompt_logprobs(tuple(range(1, 14)))
    assert transcript.cached_tokens["asks"] == 0
    assert runner.num_scored == 12


def test_choices_of_one_prompt_are_requests_of_their_own() -> None:
    """They find the prompt in the cache once one of them has computed it."""
    runner = StubRunner()
    batcher = make_batcher(runner, max_batch_size=1)
    family = [
        make_request(str(i), prompt=13, temperature=1.0, seed=i, fork_of="0" if i else None)
        for i in range(3)
    ]
    add_all(batcher, *family)

    transcript = drain(batcher)

    for request in family:
        assert transcript.of(request.request_id) == expected(request, runner)
    assert transcript.cached_tokens == {"0": 0, "1": 12, "2": 12}


def test_no_salt_finds_what_another_has_cached() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner)
    for name, salt in (("a", "one"), ("b", "other"), ("c", "one")):
        batcher.add(make_request(name, prompt=9, cache_salt=salt))
        transcript = drain(batcher)
        assert transcript.cached_tokens[name] == (8 if name == "c" else 0)


def test_who_wants_no_token_gets_none() -> None:
    """I-MAX-TOKENS-ZERO."""
    batcher = make_batcher(StubRunner(num_blocks=2))
    batcher.add(make_request("a", prompt=8 - 1, max_tokens=0, num_prompt_logprobs=0))
    transcript = drain(batcher)
    assert transcript.reasons == {"a": FinishReason.LENGTH}
    assert transcript.tokens == {}
    assert len(transcript.prompt_logprobs["a"]) == 6


def test_counts_what_it_did() -> None:
    clock = Clock()
    batcher = make_batcher(StubRunner(), clock=clock)
    assert batcher.idle_s() == float("inf")
    add_all(batcher, make_request("a", prompt=9, max_tokens=3))
    assert batcher.idle_s() == 0.0
    clock.now_s += 1.5
    (output,) = batcher.step()
    assert output.queue_s == 1.5
    assert batcher.stats().num_running == 1
    drain(batcher)
    batcher.add(make_request("b", prompt=9, max_tokens=3))
    drain(batcher)
    stats = batcher.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (18, 6)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (18, 8)
    assert stats.num_free_blocks == stats.num_blocks


def test_idle_steps_do_nothing() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner)
    assert batcher.step() == []
    batcher.add(make_request("a"))
    batcher.abort("a")
    assert batcher.step() == []
    assert runner.batches == []


def test_all_abort_while_they_pause() -> None:
    """The prefill they paused for was the last word on whose turn it is."""
    runner = StubRunner()
    batcher = make_batcher(runner)
    batcher.add(make_request("a"))
    batcher.step()
    batcher.add(make_request("b", max_tokens=1))
    runner.on_execute = partial(_abort, batcher, "a")
    batcher.step()
    runner.on_execute = lambda batch: None
    c = make_request("c")
    batcher.add(c)
    assert drain(batcher).of("c") == expected(c, runner)


def _abort(batcher: PriorityBatcher, name: str, batch: StepBatch) -> None:
    batcher.abort(name)
