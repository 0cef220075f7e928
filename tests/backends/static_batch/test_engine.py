from __future__ import annotations

import math

import pytest

from backends.static_batch.config import StaticBatchConfig
from backends.static_batch.engine import StaticBatchEngine
from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.types import FinishReason, LogitRules, StepBatch
from tests.backends.static_batch.making import drain_static, make_config, make_static
from tests.native_engine.harness import Clock, Transcript, expected, make_request
from tests.native_engine.stub_runner import StubRunner, continuation, prompt_logprobs


def test_each_row_gets_what_it_would_alone() -> None:
    engine, runner = make_static(make_config())
    requests = [
        make_request("short", prompt=3, max_tokens=9),
        make_request("long", prompt=20, max_tokens=2, temperature=1.0, seed=7),
        make_request("middle", prompt=11, max_tokens=12),
    ]
    for request in requests:
        engine.add(request)
    transcript = drain_static(engine)
    for request in requests:
        assert transcript.of(request.request_id) == expected(request, runner)


def test_prompts_are_padded_on_the_left_and_the_padding_is_computed() -> None:
    engine, runner = make_static(make_config())
    engine.add(make_request("a", prompt=3))
    engine.add(make_request("b", prompt=11))
    engine.step()
    (batch,) = runner.batches
    assert batch.num_tokens == 2 * 11
    padding, first, _ = batch.sequences
    assert (len(padding.token_ids), padding.sample) == (8, False)
    # One run of blocks: the padding's end where the prompt's begin.
    assert [*padding.block_table, *first.block_table] == list(range(9))


def test_a_row_owns_what_the_longest_request_would_need_until_the_batch_is_over() -> None:
    engine, _ = make_static(make_config(max_input_tokens=20, max_new_tokens=12))
    engine.add(make_request("a", prompt=1, max_tokens=1))
    engine.add(make_request("b", prompt=1, max_tokens=3))
    total = engine.info.num_blocks
    engine.step()
    assert engine.stats().num_running == 1
    assert total - engine.stats().num_free_blocks == 2 * ((20 + 12) // 4 + 1)
    drain_static(engine)


def test_a_row_that_has_ended_is_computed_until_the_last_has() -> None:
    engine, runner = make_static(make_config())
    engine.add(make_request("short", max_tokens=1))
    engine.add(make_request("long", max_tokens=6))
    drain_static(engine)
    assert [len(batch.sequences) for batch in runner.batches] == [2] * 6
    assert [share.sample for share in runner.batches[-1].sequences] == [False, True]


def test_a_row_s_end_is_told_when_it_comes() -> None:
    engine, _ = make_static(make_config())
    engine.add(make_request("short", max_tokens=1))
    engine.add(make_request("long", max_tokens=6))
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["short"].finish_reason is FinishReason.LENGTH
    assert outputs["long"].finish_reason is None


def test_nobody_joins_a_batch_that_runs() -> None:
    engine, runner = make_static(make_config())
    engine.add(make_request("first", max_tokens=4))
    engine.step()
    engine.add(make_request("second", max_tokens=1))
    transcript = drain_static(engine)
    assert [len(batch.sequences) for batch in runner.batches] == [1] * 5
    assert list(transcript.reasons) == ["first", "second"]


def test_batches_are_made_in_order_of_arrival() -> None:
    engine, runner = make_static(make_config(max_batch_size=2))
    for index in range(5):
        engine.add(make_request(str(index), max_tokens=2, priority=index))
    drain_static(engine)
    made = [[share.request_id for share in batch.sequences] for batch in runner.batches[::2]]
    assert made == [["0", "1"], ["2", "3"], ["4"]]


def test_the_first_of_a_batch_waits_for_others_until_the_timeout() -> None:
    clock = Clock()
    engine, runner = make_static(make_config(batch_timeout_s=0.5), clock=clock)
    assert engine.idle_s() == math.inf
    engine.add(make_request("first"))
    clock.now_s += 0.25
    engine.add(make_request("second"))
    assert engine.idle_s() == 0.25
    assert engine.step() == []
    assert not runner.batches
    clock.now_s += 0.25
    assert engine.idle_s() == 0
    outputs = engine.step()
    assert [output.queue_s for output in outputs] == [0.5, 0.25]
    assert engine.idle_s() == 0


def test_a_full_batch_waits_for_nobody() -> None:
    engine, _ = make_static(make_config(max_batch_size=2, batch_timeout_s=60.0))
    engine.add(make_request("first"))
    assert engine.idle_s() == 60.0
    engine.add(make_request("second"))
    assert engine.idle_s() == 0
    assert len(engine.step()) == 2


def test_a_row_that_is_aborted_says_no_more_and_disturbs_nobody() -> None:
    engine, runner = make_static(make_config())
    staying = make_request("staying", max_tokens=6)
    engine.add(make_request("leaving", prompt=9, max_tokens=12))
    engine.add(staying)
    transcript = Transcript()
    transcript.record(engine.step())
    engine.abort("leaving")
    engine.check_invariants()
    drain_static(engine, transcript)
    assert "leaving" not in transcript.reasons
    assert len(transcript.tokens["leaving"]) == 1
    assert transcript.of("staying") == expected(staying, runner)


def test_a_batch_that_all_have_left_is_over_at_once() -> None:
    engine, runner = make_static(make_config())
    engine.add(make_request("leaving", max_tokens=12))
    engine.step()
    engine.abort("leaving")
    assert engine.idle_s() == math.inf
    assert engine.step() == []
    assert len(runner.batches) == 1
    assert engine.stats().num_free_blocks == engine.info.num_blocks


def test_what_is_aborted_while_it_waits_is_never_computed() -> None:
    engine, runner = make_static(make_config(batch_timeout_s=60.0))
    engine.add(make_request("leaving"))
    engine.abort("leaving")
    engine.abort("unknown")
    assert not engine.has_work
    assert engine.idle_s() == math.inf
    assert engine.step() == []
    assert not runner.batches


def test_what_is_aborted_in_the_middle_of_a_step_gets_no_token_of_it() -> None:
    engine, runner = make_static(make_config())
    engine.add(make_request("leaving"))

    def leave(_: StepBatch) -> None:
        engine.abort("leaving")

    runner.on_execute = leave
    assert engine.step() == []
    assert not engine.has_work


def test_a_failing_step_ends_the_whole_batch_and_no_other() -> None:
    engine, runner = make_static(make_config(max_batch_size=2))
    waiting = make_request("waiting")
    for request in (make_request("a"), make_request("b"), waiting):
        engine.add(request)

    def fail(_: StepBatch) -> None:
        runner.on_execute = lambda _: None
        raise RuntimeError("no memory")

    runner.on_execute = fail
    outputs = engine.step()
    assert {output.request_id: output.error for output in outputs} == dict.fromkeys(
        ["a", "b"], "the forward pass failed: RuntimeError: no memory"
    )
    assert drain_static(engine).of("waiting") == expected(waiting, runner)


def test_an_engine_whose_steps_keep_failing_gives_up() -> None:
    engine, runner = make_static(make_config(max_batch_size=1))

    def fail(_: StepBatch) -> None:
        raise RuntimeError("no device")

    runner.on_execute = fail
    for index in range(3):
        engine.add(make_request(str(index)))
    engine.step()
    engine.step()
    with pytest.raises(EngineError, match="3 steps in a row: the forward pass failed"):
        engine.step()


def test_who_is_out_of_time_ends_in_the_queue_and_in_a_row() -> None:
    clock = Clock()
    engine, _ = make_static(make_config(batch_timeout_s=1.0), clock=clock)
    engine.add(make_request("in the queue", timeout_s=0.5))
    engine.add(make_request("in a row", timeout_s=1.5))
    assert engine.idle_s() == 0.5
    clock.now_s += 0.5
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason) == ("in the queue", FinishReason.DEADLINE)
    assert engine.idle_s() == 0.5
    clock.now_s += 0.5
    assert len(engine.step()) == 1
    clock.now_s += 0.5
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason) == ("in a row", FinishReason.DEADLINE)
    assert engine.stats().num_expired == 2
    assert not engine.has_work
    engine.check_invariants()


def test_tells_of_prompts_and_counts_them() -> None:
    engine, _ = make_static(make_config())
    prompt = (5, 3, 8, 1)
    engine.add(make_request("scored", prompt=prompt, max_tokens=0, num_prompt_logprobs=0))
    engine.add(make_request("plain", prompt=9, max_tokens=2))
    transcript = drain_static(engine)
    assert transcript.prompt_logprobs == {"scored": prompt_logprobs(prompt)}
    assert transcript.reasons["scored"] is FinishReason.LENGTH
    assert "scored" not in transcript.tokens
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (4 + 9, 2)


def test_rules_see_the_row_s_own_tokens() -> None:
    engine, runner = make_static(make_config())
    rules = LogitRules(min_tokens=3)
    engine.add(make_request("ruled", prompt=4, max_tokens=5, rules=rules))
    engine.add(make_request("other", prompt=9, max_tokens=12))
    drain_static(engine)
    ruled = runner.batches[0].sequences[1]
    assert ruled.history is not None
    assert ruled.history.num_outputs == 5


def test_an_answer_is_cut_to_what_a_row_holds() -> None:
    engine, _ = make_static(make_config(max_new_tokens=5))
    engine.add(make_request("greedy", max_tokens=100))
    assert len(drain_static(engine).tokens["greedy"]) == 5


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"prompt": 21}, RequestTooLong, "this engine takes at most 20"),
        ({"prompt": (1, 50)}, InvalidTokenId, "prompt token id 50 is outside the vocabulary"),
        ({"prompt": ()}, EngineError, "the prompt is empty"),
        ({"weight": 0.0}, EngineError, "weight 0.0 must be above 0"),
    ],
)
def test_refuses_what_can_never_run(
    change: dict[str, object], error: type[EngineError], message: str
) -> None:
    engine, _ = make_static(make_config())
    with pytest.raises(error, match=message):
        engine.add(make_request("wrong", **change))  # type: ignore[arg-type]
    assert not engine.has_work


def test_refuses_an_id_that_is_in_use_and_takes_it_again_later() -> None:
    engine, _ = make_static(make_config())
    engine.add(make_request("a"))
    with pytest.raises(DuplicateRequest, match="request a is waiting or running already"):
        engine.add(make_request("a"))
    drain_static(engine)
    engine.add(make_request("a"))


def test_refuses_more_than_may_queue_and_says_when_to_come_back() -> None:
    clock = Clock()
    engine, _ = make_static(make_config(max_batch_size=1, max_waiting=1), clock=clock)
    engine.add(make_request("a", max_tokens=1))
    engine.add(make_request("b", max_tokens=2))
    with pytest.raises(QueueFull, match="of 1 that may run and 1 that may wait") as refused:
        engine.add(make_request("c"))
    assert refused.value.retry_after_s is None
    engine.step()
    engine.step()
    clock.now_s += 3.0
    engine.step()
    engine.add(make_request("d"))
    engine.add(make_request("e"))
    with pytest.raises(QueueFull) as refused:
        engine.add(make_request("f"))
    assert refused.value.retry_after_s == 3.0


def test_lengths_it_is_not_told_are_the_context_s() -> None:
    config = make_config(max_input_tokens=0, max_new_tokens=0)
    engine, runner = make_static(config, max_model_len=20)
    requests = [
        make_request("long prompt", prompt=19, max_tokens=50),
        make_request("long answer", prompt=1, max_tokens=50),
    ]
    for request in requests:
        engine.add(request)
    transcript = drain_static(engine)
    assert [len(transcript.tokens[r.request_id]) for r in requests] == [1, 19]
    assert [transcript.of(r.request_id)[0] for r in requests] == [
        continuation(
            r.prompt_token_ids, r.sampling, vocab_size=runner.vocab_size, max_num_tokens=20
        )[0]
        for r in requests
    ]


@pytest.mark.parametrize(
    "config", [make_config(max_input_tokens=200), make_config(max_new_tokens=200)]
)
def test_refuses_lengths_that_do_not_fit_the_context(config: StaticBatchConfig) -> None:
    with pytest.raises(EngineError, match="answers of 200 tokens do not fit the context of 200"):
        make_static(config)


def test_refuses_a_cache_that_holds_no_full_batch() -> None:
    with pytest.raises(EngineError, match="a batch of 3 needs 27 KV blocks, and there are 26"):
        StaticBatchEngine(StubRunner(num_blocks=26), make_config(), clock=lambda: 0.0)


@pytest.mark.parametrize("max_batch_size", [0, 1025])
def test_refuses_a_batch_of_no_size(max_batch_size: int) -> None:
    with pytest.raises(ValueError, match=r"max_batch_size must be in \[1, 1024\]"):
        make_config(max_batch_size=max_batch_size)


def test_refuses_options_out_of_range() -> None:
    with pytest.raises(ValueError, match=r"batch_timeout_s must be in \[0, 60\]"):
        make_config(batch_timeout_s=-1.0)
    with pytest.raises(ValueError, match="max_input_tokens must be 0"):
        make_config(max_input_tokens=-1)
    with pytest.raises(ValueError, match="max_new_tokens must be 0"):
        make_config(max_new_tokens=-1)
    with pytest.raises(ValueError, match="max_waiting must be at least 0"):
        make_config(max_waiting=-1)
