"""One request, refusals, failing steps and the order of things."""

from __future__ import annotations

import logging

import pytest

from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.types import (
    FinishReason,
    LogitRules,
    SamplingParams,
    StepBatch,
    SteppedEngine,
)
from tests.native_engine.harness import (
    Clock,
    Transcript,
    drain,
    expected,
    make_engine,
    make_request,
)
from tests.native_engine.stub_runner import StubRunner, next_token


def test_generates_max_tokens_of_a_lone_request() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    request = make_request("a", prompt=5, max_tokens=6)
    engine.add(request)
    assert drain(engine).of("a") == expected(request, runner)
    assert engine.stats().generation_tokens_total == 6
    assert engine.stats().prompt_tokens_total == 5


def test_ends_on_an_eos_id_and_says_so() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    tokens, _ = expected(make_request("a"), runner)
    engine.add(make_request("a", eos=(tokens[2],)))
    assert drain(engine).of("a") == (tokens[:3], FinishReason.EOS)


def test_ignore_eos_drops_the_eos_ids_but_not_the_stop_ids() -> None:
    """vLLM #4589"""
    runner = StubRunner()
    engine = make_engine(runner)
    tokens, _ = expected(make_request("a"), runner)
    engine.add(make_request("a", eos=(tokens[1],), stop=(tokens[3],), ignore_eos=True))
    assert drain(engine).of("a") == (tokens[:4], FinishReason.STOP)


def test_an_eos_in_the_prompt_ends_nothing() -> None:
    runner = StubRunner(vocab_size=1000)
    engine = make_engine(runner)
    engine.add(make_request("a", prompt=(7, 8), eos=(8,), max_tokens=3))
    assert len(drain(engine).tokens["a"]) == 3


def test_ends_with_length_when_the_context_is_full() -> None:
    runner = StubRunner(max_model_len=12)
    engine = make_engine(runner)
    engine.add(make_request("a", prompt=5, max_tokens=2**31 - 1))
    tokens, reason = drain(engine).of("a")
    assert (len(tokens), reason) == (7, FinishReason.LENGTH)


def test_ends_with_length_when_one_sequence_alone_outgrows_the_pool() -> None:
    """E-KV-TOO-LONG, third part."""
    engine = make_engine(StubRunner(num_blocks=3, block_size=4))
    engine.add(make_request("a", prompt=5, max_tokens=500))
    tokens, reason = drain(engine).of("a")
    assert (len(tokens), reason) == (7, FinishReason.LENGTH)


def test_admits_a_prompt_that_takes_the_whole_pool() -> None:
    engine = make_engine(StubRunner(num_blocks=3, block_size=4))
    engine.add(make_request("a", prompt=11, max_tokens=500))
    assert len(drain(engine).tokens["a"]) == 1


def test_says_how_long_a_request_waited_before_its_first_step() -> None:
    clock = Clock()
    engine = make_engine(StubRunner(), max_num_batched_tokens=4, clock=clock)
    engine.add(make_request("a", prompt=8, max_tokens=2))
    clock.now_s += 2.5
    assert engine.step() == []  # half of the prompt
    clock.now_s += 1.0
    (first,) = engine.step()
    (second,) = engine.step()
    assert first.queue_s == 2.5
    assert second.queue_s is None


def test_does_nothing_without_work() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    assert not engine.has_work
    assert engine.step() == []
    assert runner.batches == []


def test_tells_what_does_not_change() -> None:
    runner = StubRunner(num_blocks=7, block_size=3, vocab_size=9, max_model_len=11)
    engine: SteppedEngine = make_engine(runner)  # mypy holds the protocol
    info = engine.info
    assert (info.num_blocks, info.block_size, info.vocab_size, info.max_model_len) == (7, 3, 9, 11)
    assert (info.model_id, info.description, info.dtype, info.device) == (
        "stub",
        "a stub",
        "int",
        "none",
    )


def test_check_finds_a_request_that_is_queued_nowhere() -> None:
    engine = make_engine(StubRunner())
    engine.add(make_request("a"))
    (sequence,) = engine._scheduler.waiting
    engine._scheduler.finish(sequence)
    with pytest.raises(AssertionError, match="are known"):
        engine.check_invariants()


def test_refuses_an_empty_prompt() -> None:
    engine = make_engine(StubRunner())
    with pytest.raises(EngineError, match="empty"):
        engine.add(make_request("a", prompt=()))
    assert not engine.has_work


def test_refuses_a_prompt_that_fills_the_context() -> None:
    engine = make_engine(StubRunner(max_model_len=12))
    with pytest.raises(RequestTooLong, match=r"12 tokens.*context of 12"):
        engine.add(make_request("a", prompt=12))
    engine.add(make_request("b", prompt=11))
    assert len(drain(engine).tokens["b"]) == 1


def test_refuses_a_prompt_beyond_the_pool_while_a_short_one_behind_it_finishes() -> None:
    """E-KV-TOO-LONG: 16 blocks of 16 tokens, a prompt of 400 and one of 10."""
    runner = StubRunner(num_blocks=16, block_size=16, max_model_len=2048)
    engine = make_engine(runner)
    with pytest.raises(RequestTooLong, match=r"400 tokens.*26 KV blocks of 16 tokens.*are 16"):
        engine.add(make_request("long", prompt=(1,) * 400))
    short = make_request("short", prompt=10)
    engine.add(short)
    assert drain(engine).of("short") == expected(short, runner)


@pytest.mark.parametrize("token_id", [-1, 50, 151645, 2**31, 2**63])
def test_refuses_ids_outside_the_vocabulary_and_leaves_the_neighbour_alone(token_id: int) -> None:
    """I-STOP-IDS-OOV"""
    runner = StubRunner(vocab_size=50)
    engine = make_engine(runner)
    neighbour = make_request("neighbour")
    engine.add(neighbour)
    with pytest.raises(InvalidTokenId, match=f"stop token id {token_id} is outside.*0 to 49"):
        engine.add(make_request("a", stop=(3, token_id)))
    with pytest.raises(InvalidTokenId, match=f"prompt token id {token_id} is outside"):
        engine.add(make_request("a", prompt=(1, token_id, 2)))
    for name, rules in (
        ("allowed", LogitRules(allowed_token_ids=(3, token_id))),
        ("biased", LogitRules(logit_bias=((token_id, 1.0),))),
        ("banned", LogitRules(bad_words=((3,), (4, token_id)))),
    ):
        with pytest.raises(InvalidTokenId, match=f"{name} token id {token_id} is outside"):
            engine.add(make_request("a", rules=rules))
    assert drain(engine).of("neighbour") == expected(neighbour, runner)


def test_refuses_an_id_in_use_and_takes_it_again_afterwards() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    first, second = make_request("a", prompt=5), make_request("a", prompt=7)
    engine.add(first)
    with pytest.raises(DuplicateRequest, match="a is waiting or running"):
        engine.add(second)
    assert drain(engine).of("a") == expected(first, runner)
    engine.add(second)
    assert drain(engine).of("a") == expected(second, runner)


def test_refuses_more_than_may_run_and_wait() -> None:
    engine = make_engine(StubRunner(), max_num_seqs=1, max_waiting=1)
    engine.add(make_request("a"))
    engine.add(make_request("b"))
    with pytest.raises(QueueFull, match="2 requests"):
        engine.add(make_request("c"))
    engine.abort("b")
    engine.add(make_request("c"))
    assert set(drain(engine).reasons) == {"a", "c"}


class Failing:
    """Raises in the runner on chosen steps."""

    def __init__(self, error: Exception, *, on_steps: set[int]) -> None:
        self._error = error
        self._on_steps = on_steps
        self._step = 0

    def __call__(self, batch: StepBatch) -> None:
        self._step += 1
        if self._step in self._on_steps:
            raise self._error


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("no room")])
def test_a_failing_step_ends_its_own_requests_and_no_other(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """E-ENGINE-STEP-ERROR: three in the step, one waiting."""
    runner = StubRunner()
    engine = make_engine(runner, max_num_seqs=3)
    runner.on_execute = Failing(error, on_steps={2})
    requests = [make_request(name, prompt=3 + i) for i, name in enumerate("abcd")]
    for request in requests:
        engine.add(request)
    with caplog.at_level(logging.ERROR):
        transcript = drain(engine)
    assert set(transcript.errors) == {"a", "b", "c"}
    assert f"{type(error).__name__}: no room" in transcript.errors["a"]
    assert transcript.of("d") == expected(requests[3], runner)
    assert caplog.records[0].exc_info is not None
    assert "3 sequences" in caplog.text


def test_an_abort_in_a_failing_step_gets_no_error_output() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    engine.add(make_request("a"))
    engine.add(make_request("b"))

    def fail(batch: StepBatch) -> None:
        engine.abort("a")
        raise RuntimeError("broken")

    runner.on_execute = fail
    (output,) = engine.step()
    assert (output.request_id, output.token) == ("b", None)
    assert output.error == "the forward pass failed: RuntimeError: broken"
    assert not engine.has_work


def test_gives_up_after_three_failing_steps_in_a_row() -> None:
    """E-ENGINE-STEP-ERROR: always failing. A good step in between starts the count again."""
    runner = StubRunner()
    engine = make_engine(runner)
    runner.on_execute = Failing(RuntimeError("broken"), on_steps={1, 2, 4, 5, 6})
    for _ in range(5):
        engine.add(make_request("a", max_tokens=1))
        engine.step()
    engine.add(make_request("a", max_tokens=1))
    with pytest.raises(EngineError, match=r"3 steps in a row.*broken") as caught:
        engine.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    engine.check_invariants()
    assert engine.stats().num_free_blocks == engine.info.num_blocks


def test_four_cold_prompts_all_get_their_first_token_before_any_ends() -> None:
    """E-QUEUE-LATCH"""
    engine = make_engine(
        StubRunner(num_blocks=400, max_model_len=400), max_num_seqs=4, max_num_batched_tokens=16
    )
    for i in range(4):
        engine.add(make_request(str(i), prompt=(i + 1,) * 200, max_tokens=100))
    transcript = Transcript()
    while len(transcript.tokens) < 4:
        transcript.record(engine.step())
    assert transcript.reasons == {}


def test_a_place_freed_by_an_abort_is_taken_in_the_next_step() -> None:
    """E-QUEUE-LATCH, second part."""
    engine = make_engine(StubRunner(), max_num_seqs=4)
    for i in range(5):
        engine.add(make_request(str(i), prompt=3, max_tokens=30))
    for _ in range(3):
        engine.step()
    assert engine.stats().num_waiting == 1
    engine.abort("2")
    outputs = engine.step()
    assert "4" in {output.request_id for output in outputs}
    assert engine.stats().num_waiting == 0


def test_equal_seeds_and_positions_draw_equal_noise_in_the_stub() -> None:
    """The oracle itself: noise depends on the seed when sampling, and on nothing when greedy."""
    warm = [SamplingParams(max_tokens=1, temperature=1.0, seed=s) for s in range(8)]
    cold = [SamplingParams(max_tokens=1, temperature=0.0, seed=s) for s in range(8)]
    assert len({next_token([1, 2], sampling, 1000) for sampling in warm}) > 1
    assert len({next_token([1, 2], sampling, 1000) for sampling in cold}) == 1
