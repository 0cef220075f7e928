"""Priority classes, deadlines, bypassing and admission, as the engine's clients see them."""

from __future__ import annotations

import math

import pytest

from native_engine.chunking import MIN_CHUNK
from native_engine.engine import Engine
from native_engine.errors import EngineError
from native_engine.types import FinishReason, SequenceOutput
from tests.native_engine.harness import (
    Clock,
    Transcript,
    drain,
    expected,
    let_expect_short_outputs,
    make_engine,
    make_request,
)
from tests.native_engine.stub_runner import StubRunner


def running(engine: Engine) -> set[str]:
    return {sequence.request_id for sequence in engine._scheduler.running}


class TestClasses:
    def test_a_low_class_starts_within_its_age_and_high_ones_keep_their_order(self) -> None:
        """E-PRIORITY-STARVE: one of the lowest class, then high ones at 1.2 times what can be
        served for 60 s; each takes 5 steps of 1 s.
        """
        clock = Clock()
        runner = StubRunner()
        engine = make_engine(runner, max_num_seqs=1, max_waiting=40, clock=clock, aging_s=10.0)
        engine.add(make_request("high 0", prompt=1, max_tokens=5, priority=2))
        engine.step()
        engine.add(make_request("low", prompt=1, max_tokens=5))
        added_s, due_s, serial = clock.now_s, clock.now_s, 1
        started_s: dict[str, float] = {}
        while clock.now_s < added_s + 60:
            while due_s <= clock.now_s:
                engine.add(make_request(f"high {serial}", prompt=1, max_tokens=5, priority=2))
                serial += 1
                due_s += 5 / 1.2
            engine.step()
            for name in running(engine):
                started_s.setdefault(name, clock.now_s)
            clock.now_s += 1.0
        assert 20 <= started_s["low"] - added_s <= 20 + 5
        high = [name for name in started_s if name != "low"]
        assert high == sorted(high, key=lambda name: int(name.split()[1]))
        drain(engine)

    def test_a_higher_class_takes_the_place_of_a_lower_one_which_goes_on_later(self) -> None:
        runner = StubRunner()
        engine = make_engine(runner, max_num_seqs=2)
        low = [make_request(name, max_tokens=20) for name in ("old", "new")]
        high = make_request("high", priority=1)
        for request in low:
            engine.add(request)
        transcript = Transcript()
        for _ in range(4):
            transcript.record(engine.step())
        engine.add(high)
        transcript.record(engine.step())
        assert running(engine) == {"old", "high"}
        drain(engine, transcript)
        for request in (*low, high):
            assert transcript.of(request.request_id) == expected(request, runner)
        assert engine.stats().num_preemptions == 1

    def test_a_higher_class_takes_blocks_from_lower_ones_as_few_as_it_needs(self) -> None:
        """12 blocks: 3 for each of the low ones, 3 free, and the high one needs 5."""
        runner = StubRunner(num_blocks=12, block_size=4)
        engine = make_engine(runner, max_num_batched_tokens=64)
        let_expect_short_outputs(engine)
        requests = [make_request(str(i), prompt=(i,) * 10, max_tokens=6) for i in range(3)]
        requests.append(make_request("high", prompt=15, max_tokens=6, priority=1))
        transcript = Transcript()
        for request in requests:
            if request.priority:
                transcript.record(engine.step())
            engine.add(request)
        transcript.record(engine.step())
        assert running(engine) == {"0", "1", "high"}
        drain(engine, transcript)
        for request in requests:
            assert transcript.of(request.request_id) == expected(request, runner)

    def test_an_equal_class_displaces_nobody(self) -> None:
        engine = make_engine(StubRunner(), max_num_seqs=1)
        engine.add(make_request("first", priority=3, max_tokens=30))
        engine.step()
        engine.add(make_request("second", priority=3))
        engine.step()
        assert running(engine) == {"first"}
        drain(engine)
        assert engine.stats().num_preemptions == 0

    def test_age_gives_a_turn_but_displaces_nobody(self) -> None:
        clock = Clock()
        engine = make_engine(StubRunner(), max_num_seqs=1, clock=clock, aging_s=10.0)
        engine.add(make_request("high", priority=1, max_tokens=30))
        engine.step()
        engine.add(make_request("low", max_tokens=1))
        clock.now_s += 1000.0
        engine.step()
        assert running(engine) == {"high"}
        drain(engine)

    def test_who_was_here_for_long_is_displaced_no_more(self) -> None:
        """So no flow of higher classes can keep a sequence from its end."""
        clock = Clock()
        engine = make_engine(StubRunner(), max_num_seqs=1, clock=clock, aging_s=10.0)
        engine.add(make_request("low", max_tokens=30))
        engine.step()
        clock.now_s += 19.0
        engine.add(make_request("displaces it", priority=2, max_tokens=1))
        engine.step()
        assert engine.stats().num_preemptions == 1
        clock.now_s += 2.0
        engine.step()
        engine.add(make_request("waits", priority=2, max_tokens=1))
        engine.step()
        assert running(engine) == {"low"}
        drain(engine)
        assert engine.stats().num_preemptions == 1

    def test_what_made_room_does_not_come_back_in_the_same_step(self) -> None:
        """The high one takes the place, and blocks for both are there."""
        engine = make_engine(StubRunner(), max_num_seqs=1)
        engine.add(make_request("low", max_tokens=9))
        engine.step()
        engine.add(make_request("high", priority=1, max_tokens=1))
        assert [output.request_id for output in engine.step()] == ["high"]
        assert running(engine) == set()
        assert [output.request_id for output in engine.step()] == ["low"]
        drain(engine)


class TestDeadlines:
    @staticmethod
    def ended(outputs: list[SequenceOutput]) -> list[str]:
        ended = [o for o in outputs if o.finish_reason is FinishReason.DEADLINE]
        assert all(output.token is None and output.error is None for output in ended)
        return [output.request_id for output in ended]

    def test_ends_what_is_overdue_waiting_or_running_and_nothing_else(self) -> None:
        clock = Clock()
        runner = StubRunner()
        engine = make_engine(runner, max_num_seqs=2, clock=clock)
        patient = make_request("patient", max_tokens=12)
        for request in (
            patient,
            make_request("running", max_tokens=99, timeout_s=5.0),
            make_request("waiting", timeout_s=5.0),
            make_request("later", timeout_s=50.0),
        ):
            engine.add(request)
        transcript = Transcript()
        transcript.record(engine.step())
        clock.now_s += 4.9
        outputs = engine.step()
        assert self.ended(outputs) == []
        transcript.record(outputs)
        clock.now_s += 0.1
        outputs = engine.step()
        assert self.ended(outputs) == ["running", "waiting"]
        transcript.record(outputs)
        drain(engine, transcript)
        assert transcript.of("patient") == expected(patient, runner)
        assert len(transcript.tokens["running"]) == 2
        assert transcript.reasons["later"] is FinishReason.LENGTH
        assert engine.stats().num_expired == 2

    @pytest.mark.parametrize("timeout_s", [0.0, -1.0])
    def test_what_has_no_time_at_all_ends_before_it_starts(self, timeout_s: float) -> None:
        runner = StubRunner()
        engine = make_engine(runner, clock=Clock())
        engine.add(make_request("a", timeout_s=timeout_s))
        assert engine.has_work
        assert self.ended(engine.step()) == ["a"]
        assert not engine.has_work
        assert runner.batches == []

    def test_a_preempted_request_ends_at_its_deadline_too(self) -> None:
        clock = Clock()
        engine = make_engine(StubRunner(), max_num_seqs=1, clock=clock)
        engine.add(make_request("low", max_tokens=30, timeout_s=5.0))
        engine.step()
        engine.add(make_request("high", priority=1, max_tokens=30))
        engine.step()
        clock.now_s += 6.0
        assert self.ended(engine.step()) == ["low"]
        drain(engine)

    def test_what_ended_or_left_has_no_deadline_left(self) -> None:
        clock = Clock()
        engine = make_engine(StubRunner(), clock=clock)
        engine.add(make_request("ends", max_tokens=1, timeout_s=5.0))
        engine.add(make_request("leaves", timeout_s=5.0))
        engine.step()
        engine.abort("leaves")
        assert len(engine._scheduler.deadlines) == 0
        clock.now_s += 10.0
        assert engine.step() == []
        assert engine.stats().num_expired == 0

    def test_a_failing_step_does_not_swallow_the_ends(self) -> None:
        clock = Clock()
        runner = StubRunner()
        engine = make_engine(runner, clock=clock)
        engine.add(make_request("overdue", timeout_s=1.0))
        engine.add(make_request("fails"))
        clock.now_s += 2.0

        def explode(batch: object) -> None:
            raise RuntimeError("injected")

        runner.on_execute = explode
        first, second = engine.step()
        assert (first.request_id, first.finish_reason) == ("overdue", FinishReason.DEADLINE)
        assert (second.request_id, second.finish_reason) == ("fails", None)
        assert second.error is not None


class TestBypass:
    @pytest.mark.parametrize("max_bypass", [0, 1, 3])
    def test_a_head_that_does_not_fit_lets_so_many_pass_and_then_nobody(
        self, max_bypass: int
    ) -> None:
        """E-KV-TOO-LONG, its queue: 10 blocks; one request holds 6, the head needs 6."""
        runner = StubRunner(num_blocks=10, block_size=4)
        engine = make_engine(runner, max_num_seqs=8, max_bypass=max_bypass)
        engine.add(make_request("holds", prompt=16, max_tokens=8))
        while "holds" not in running(engine):
            engine.step()
        engine.add(make_request("head", prompt=(9,) * 20, max_tokens=2))
        for index in range(6):
            engine.add(make_request(f"small {index}", prompt=(index,), max_tokens=2))
        passed: set[str] = set()
        transcript = Transcript()
        while "head" not in running(engine):
            transcript.record(engine.step())
            engine.check_invariants()
            passed |= (
                running(engine) - {"holds", "head"} if "head" not in running(engine) else set()
            )
        assert passed == {f"small {index}" for index in range(max_bypass)}
        drain(engine, transcript)
        assert len(transcript.reasons) == 8

    def test_a_head_that_fits_again_goes_in_the_next_step(self) -> None:
        """E-QUEUE-LATCH: the real counts are looked at in each step."""
        engine = make_engine(StubRunner(num_blocks=10, block_size=4), max_num_batched_tokens=64)
        engine.add(make_request("holds", prompt=20, max_tokens=9))
        engine.add(make_request("head", prompt=(9,) * 20, max_tokens=2))
        for _ in range(3):
            engine.step()
        assert running(engine) == {"holds"}
        engine.abort("holds")
        engine.step()
        assert running(engine) == {"head"}
        drain(engine)

    def test_one_that_was_tried_in_vain_is_tried_again_when_another_has_ended(self) -> None:
        """E-QUEUE-LATCH, for those behind the head."""
        engine = make_engine(
            StubRunner(num_blocks=12, block_size=4), max_num_batched_tokens=64, max_num_seqs=3
        )
        engine.add(make_request("long", prompt=20, max_tokens=9))
        engine.add(make_request("short", prompt=(8,) * 12, max_tokens=3))
        engine.add(make_request("head", prompt=(9,) * 36, max_tokens=2))
        engine.add(make_request("behind", prompt=(7,) * 10, max_tokens=3))
        engine.step()
        while "short" in running(engine):
            assert running(engine) == {"long", "short"}
            engine.step()
        engine.step()
        assert running(engine) == {"long", "behind"}
        drain(engine)


class TestAdmission:
    def test_admits_only_as_many_as_are_expected_to_reach_their_ends(self) -> None:
        """Two of 8 + 24 tokens do not fit 48 slots, though both prompts do; with `ignore_eos`
        nothing is left to guess.
        """
        engine = make_engine(StubRunner(num_blocks=12, block_size=4), max_num_batched_tokens=64)
        let_expect_short_outputs(engine)
        for name in "ab":
            engine.add(
                make_request(name, prompt=8, max_tokens=24, ignore_eos=True, cache_salt=name)
            )
        engine.step()
        assert running(engine) == {"a"}
        drain(engine)
        assert engine.stats().num_preemptions == 0

    def test_an_idle_engine_admits_the_head_whatever_is_expected_of_it(self) -> None:
        engine = make_engine(StubRunner(num_blocks=4, block_size=4))
        engine.add(make_request("a", prompt=3, max_tokens=10**6, ignore_eos=True))
        engine.step()
        assert running(engine) == {"a"}
        drain(engine)

    def test_learns_from_preemptions_to_expect_more(self) -> None:
        """The same crowd again and again, after outputs of one token: ever fewer give way."""
        runner = StubRunner(num_blocks=12, block_size=4)
        engine = make_engine(runner, max_num_seqs=6, max_num_batched_tokens=64)
        let_expect_short_outputs(engine)
        rounds = []
        for index in range(12):
            before = engine.stats().num_preemptions
            for name in range(6):
                engine.add(
                    make_request(f"{index}-{name}", prompt=4, max_tokens=16, cache_salt=str(name))
                )
            drain(engine)
            rounds.append(engine.stats().num_preemptions - before)
        assert rounds[0] > 0
        assert rounds[-1] == 0

    def test_blocks_that_are_shared_are_expected_to_be_used_once(self) -> None:
        """Three that share 7 of 8 blocks fit into 16, where two that share nothing would not."""
        engine = make_engine(StubRunner(num_blocks=16, block_size=4), max_num_batched_tokens=64)
        prompt = tuple(range(1, 31))
        for index in range(3):
            engine.add(make_request(str(index), prompt=prompt, max_tokens=8))
            engine.step()
        assert running(engine) == {"0", "1", "2"}
        drain(engine)


class TestShortSteps:
    """Steps take 10 ms and 1 ms per token, by the clock."""

    @staticmethod
    def largest_prefill(target_itl_s: float, *, with_decode: bool = True) -> int:
        clock = Clock()
        runner = StubRunner(num_blocks=400, max_model_len=1000, vocab_size=1000)
        engine = make_engine(
            runner, max_num_batched_tokens=128, clock=clock, target_itl_s=target_itl_s
        )

        def take_time(batch: object) -> None:
            clock.now_s += 0.010 + 0.001 * runner.batches[-1].num_tokens

        runner.on_execute = take_time
        engine.add(make_request("first", prompt=130, max_tokens=40 if with_decode else 1))
        for _ in range(4):
            engine.step()
        assert engine.has_work == with_decode
        runner.batches.clear()
        engine.add(make_request("second", prompt=tuple(range(300, 700)), max_tokens=1))
        for _ in range(5):
            engine.step()
        return max(len(s.token_ids) for batch in runner.batches for s in batch.sequences)

    def test_a_step_with_decodes_takes_no_more_of_a_prompt_than_keeps_its_time(self) -> None:
        assert self.largest_prefill(0.0) == 127
        assert self.largest_prefill(0.070) == pytest.approx(59, abs=1)

    def test_a_prompt_gets_on_by_a_chunk_though_no_time_is_left(self) -> None:
        assert self.largest_prefill(0.011) == MIN_CHUNK

    def test_without_decodes_a_step_takes_all_it_may(self) -> None:
        assert self.largest_prefill(0.070, with_decode=False) == 128


def test_a_short_prompt_does_not_wait_for_a_long_one_to_be_computed() -> None:
    runner = StubRunner(num_blocks=400, max_model_len=1000)
    engine = make_engine(runner, max_num_batched_tokens=128)
    engine.add(make_request("long", prompt=(1,) * 800, max_tokens=1))
    engine.step()
    engine.add(make_request("short", prompt=(2,) * 40, max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["short"]
    drain(engine)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_refuses_a_weight_that_means_nothing(weight: float) -> None:
    engine = make_engine(StubRunner())
    with pytest.raises(EngineError, match=r"weight .* must be above 0 and finite"):
        engine.add(make_request("a", weight=weight))
    assert not engine.has_work
