"""Speculation over the stub: the outputs of plain decoding, in fewer steps and at nobody's cost."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from native_engine.engine import Engine
from native_engine.noise import uniform
from native_engine.output_lengths import ENOUGH
from native_engine.speculation import MAX_ROWS
from native_engine.step_cost import DECAY
from native_engine.types import (
    EngineRequest,
    FinishReason,
    LogitRules,
    SampledToken,
    ScheduledSequence,
    SequenceResult,
    StepBatch,
)
from tests.native_engine.harness import (
    Clock,
    Transcript,
    drain,
    expected,
    make_engine,
    make_request,
)
from tests.native_engine.peeking import running
from tests.native_engine.stub_runner import Slot, StubRunner

PERIOD = (1, 2, 3, 4)


class RepeatingRunner(StubRunner):
    """Goes on with the period for as long as it holds, and draws as the stub does behind it."""

    holds_until = 40

    def _result(self, share: ScheduledSequence, context: list[Slot]) -> SequenceResult:
        result = super()._result(share, context)
        first = share.start + len(share.token_ids) - share.num_drafts
        return SequenceResult(
            tuple(
                SampledToken(token_id=PERIOD[position % 4])
                if position < self.holds_until
                else token
                for position, token in enumerate(result.tokens, first)
            )
        )


def repeating(request_id: str = "a", *, max_tokens: int = 30, **options: object) -> EngineRequest:
    return make_request(request_id, prompt=PERIOD * 2, max_tokens=max_tokens, **options)  # type: ignore[arg-type]


def outputs_and_steps(
    request: EngineRequest, *, speculates: bool, runner: StubRunner
) -> tuple[tuple[list[int], FinishReason], int]:
    engine = make_engine(runner, speculation="prompt_lookup" if speculates else "off")
    engine.add(request)
    return drain(engine).of(request.request_id), len(runner.batches)


def random_request(choose: random.Random, request_id: str, vocab_size: int) -> EngineRequest:
    return make_request(
        request_id,
        prompt=tuple(choose.choices(range(vocab_size), k=choose.randint(1, 20))),
        max_tokens=choose.randint(1, 40),
        temperature=choose.choice([0.0, 1.0]),
        seed=choose.randrange(4),
        eos=choose.choice([(), (), (0,)]),
        stop=choose.choice([(), (), (1,)]),
        ignore_eos=choose.random() < 0.5,
        rules=choose.choice([None, LogitRules(presence_penalty=1.0)]),
        cache_salt=choose.choice(["", "", "other"]),
        tenant=choose.choice("ab"),
    )


def takes_blocks_for_drafts(share: ScheduledSequence, block_size: int) -> bool:
    stop = share.start + len(share.token_ids)
    return -(-stop // block_size) > -(-(stop - share.num_drafts) // block_size)


def poison_free_blocks(engine: Engine, runner: StubRunner) -> None:
    held = {block for s in engine._scheduler.running for block in s.block_table}
    cached = set(engine._block_manager._blocks.values())
    runner.poison(set(range(runner.num_blocks)) - held - cached)


@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_yield_what_each_request_yields_alone(seed: int) -> None:
    """With few kinds of token about half of the guesses fail; blocks are short, requests come and
    go in the middle of steps, choices are forked, and what a rejected draft left in a freed block
    is wiped. Nobody is preempted in the step after one whose drafts took blocks.
    """
    choose = random.Random(seed)
    vocab_size = choose.choice([2, 3])
    runner = StubRunner(
        num_blocks=choose.randint(4, 24),
        block_size=choose.randint(1, 5),
        vocab_size=vocab_size,
        max_model_len=choose.randint(10, 60),
    )
    num_seqs = choose.randint(1, 6)
    budget = num_seqs + choose.randint(0, 12)
    engine = make_engine(
        runner,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=budget,
        max_waiting=200,
        prefix_caching=choose.random() < 0.7,
        speculation="prompt_lookup",
    )
    longest = min(runner.max_model_len, runner.num_blocks * runner.block_size)
    transcript, live, took_blocks = Transcript(), dict[str, EngineRequest](), False
    for index in range(200):
        if choose.random() < 0.3:
            request = random_request(choose, str(index), vocab_size)
            if len(request.prompt_token_ids) < longest:
                for number in range(choose.choice([1, 1, 3])):
                    choice = replace(
                        request,
                        request_id=f"{index}/{number}",
                        fork_of=f"{index}/0" if number else None,
                    )
                    engine.add(choice)
                    live[choice.request_id] = runner.requests[choice.request_id] = choice
        if live and choose.random() < 0.05:
            aborted = choose.choice(list(live))
            del live[aborted]
            runner.on_execute = lambda batch, aborted=aborted: engine.abort(aborted)  # type: ignore[misc]
        poison_free_blocks(engine, runner)
        num_preemptions = engine.stats().num_preemptions
        transcript.record(engine.step())
        assert not took_blocks or engine.stats().num_preemptions == num_preemptions
        took_blocks = bool(runner.batches) and any(
            takes_blocks_for_drafts(share, runner.block_size)
            for share in runner.batches[-1].sequences
        )
        runner.on_execute = lambda batch: None
        engine.check_invariants()
        for sequence in running(engine):
            num_tokens = len(sequence.block_table) * runner.block_size
            assert num_tokens < len(sequence.token_ids) + runner.block_size
    drain(engine, transcript, limit=10_000)
    assert all(
        transcript.of(request_id) == expected(live[request_id], runner) for request_id in live
    )
    assert all(batch.num_tokens <= budget for batch in runner.batches)


def test_random_schedules_do_accept_and_reject_drafts() -> None:
    """Lest the test above hold for want of drafts."""
    choose = random.Random(0)
    runner = StubRunner(vocab_size=2)
    engine = make_engine(runner, speculation="prompt_lookup")
    for index in range(4):
        engine.add(make_request(str(index), prompt=(choose.randrange(2),), max_tokens=100))
    drain(engine)
    stats = engine.stats()
    assert 20 < stats.num_accepted_tokens < stats.num_draft_tokens - 20


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_a_repeating_answer_takes_fewer_steps_and_stays_the_same(block_size: int) -> None:
    plain, slow = outputs_and_steps(
        repeating(), speculates=False, runner=RepeatingRunner(block_size=block_size)
    )
    guessed, fast = outputs_and_steps(
        repeating(), speculates=True, runner=RepeatingRunner(block_size=block_size)
    )
    assert guessed == plain
    assert slow == 30
    assert fast <= 8


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_ends_an_answer_among_accepted_drafts(max_tokens: int) -> None:
    request = repeating(max_tokens=max_tokens)
    runner = RepeatingRunner()
    (tokens, reason), _ = outputs_and_steps(request, speculates=True, runner=runner)
    assert (len(tokens), reason) == (max_tokens, FinishReason.LENGTH)
    shares = [share for batch in runner.batches for share in batch.sequences]
    assert max(share.start + len(share.token_ids) for share in shares) == 8 + max_tokens - 1


@pytest.mark.parametrize("ends_at", range(1, 20))
def test_eos_or_a_stop_id_ends_an_answer_among_accepted_drafts(ends_at: int) -> None:
    """Exactly there: drafts accepted after it yield nothing, and leave no block behind."""

    class Ending(RepeatingRunner):
        def _result(self, share: ScheduledSequence, context: list[Slot]) -> SequenceResult:
            first = share.start + len(share.token_ids) - share.num_drafts
            return SequenceResult(
                tuple(
                    SampledToken(token_id=9) if position == 7 + ends_at else token
                    for position, token in enumerate(super()._result(share, context).tokens, first)
                )
            )

    prompt = (*PERIOD, 9, *PERIOD)  # the guesses know of 9 as well
    for ending, reason in (({"eos": (9,)}, FinishReason.EOS), ({"stop": (9,)}, FinishReason.STOP)):
        request = make_request("a", prompt=prompt[-8:], max_tokens=30, **ending)  # type: ignore[arg-type]
        plain, _ = outputs_and_steps(request, speculates=False, runner=Ending())
        guessed, _ = outputs_and_steps(request, speculates=True, runner=Ending())
        assert guessed == plain
        assert (len(plain[0]), plain[1]) == (ends_at, reason)


def test_every_output_has_one_token_and_only_the_first_says_what_was_cached() -> None:
    engine = make_engine(RepeatingRunner(), speculation="prompt_lookup")
    engine.add(repeating())
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    assert len(outputs) == 30
    assert all(output.token is not None for output in outputs)
    assert [output.cached_tokens for output in outputs] == [0] + [None] * 29
    assert [output.finish_reason for output in outputs] == [None] * 29 + [FinishReason.LENGTH]


def test_stats_count_guesses_and_those_that_were_right() -> None:
    runner = RepeatingRunner()
    engine = make_engine(runner, speculation="prompt_lookup")
    engine.add(repeating())
    drain(engine)
    stats = engine.stats()
    drafts = sum(share.num_drafts for batch in runner.batches for share in batch.sequences)
    assert stats.num_draft_tokens == drafts
    assert stats.num_accepted_tokens == 30 - len(runner.batches)
    assert stats.generation_tokens_total == 30


def test_drafts_leave_prefills_and_other_decodes_their_budget() -> None:
    runner = RepeatingRunner(num_blocks=200, max_model_len=400)
    engine = make_engine(
        runner, max_num_seqs=2, max_num_batched_tokens=6, speculation="prompt_lookup"
    )
    engine.add(repeating("decodes"))
    engine.step()
    engine.step()
    engine.add(make_request("prefills", prompt=20))
    engine.step()
    while engine._sequences["prefills"].num_computed_tokens < 20:
        batch = runner.batches[-1]
        assert [(len(s.token_ids), s.num_drafts) for s in batch.sequences] == [(1, 0), (5, 0)]
        engine.step()
    assert max(batch.num_tokens for batch in runner.batches) <= 6


def test_drafts_take_free_blocks_only_and_give_them_back() -> None:
    """Three blocks of four: the neighbour's growth finds the free one, drafts or not."""
    runner = RepeatingRunner(num_blocks=5, block_size=4)
    engine = make_engine(runner, speculation="prompt_lookup")
    engine.add(make_request("a", prompt=PERIOD, max_tokens=12))
    engine.add(make_request("b", prompt=2, max_tokens=2))
    transcript = drain(engine)
    assert engine.stats().num_preemptions == 0
    assert len(transcript.tokens["a"]) == 12


def test_drafts_take_no_block_while_somebody_waits() -> None:
    """Not even for a step: whoever waits is to find what plain decoding would leave."""
    runner = RepeatingRunner(block_size=4)
    engine = make_engine(runner, max_num_seqs=1, speculation="prompt_lookup")
    engine.add(repeating("runs"))
    engine.add(repeating("waits", max_tokens=1))
    while engine.stats().num_waiting:
        engine.step()
    shares = [share for batch in runner.batches for share in batch.sequences]
    assert sum(share.num_drafts for share in shares) > 5
    assert not any(takes_blocks_for_drafts(share, 4) for share in shares)


def test_nothing_cached_is_forgotten_for_a_draft() -> None:
    """A pool that an earlier answer has filled: all blocks that are free have names."""
    runner = RepeatingRunner(num_blocks=12, block_size=4)
    engine = make_engine(runner, max_num_batched_tokens=64, speculation="prompt_lookup")
    engine.add(make_request("cached", prompt=tuple(range(5, 46)), max_tokens=5))
    drain(engine)
    num_before = len(runner.batches)
    engine.add(repeating())
    drain(engine)
    shares = [share for batch in runner.batches[num_before:] for share in batch.sequences]
    assert sum(share.num_drafts for share in shares) > 5
    assert not any(takes_blocks_for_drafts(share, 4) for share in shares)


@pytest.mark.parametrize("num_blocks", range(24, 44))
def test_who_could_run_ahead_preempts_nobody_who_cannot(num_blocks: int) -> None:
    """27 blocks for one that repeats itself and 12 for one that does not: step by step they need 33
    at most together, since the second ends first. Only where there are 39 may the first be faster.
    """

    class Unequal(RepeatingRunner):
        holds_until = 200

        def _result(self, share: ScheduledSequence, context: list[Slot]) -> SequenceResult:
            if share.request_id == "repeats":
                return super()._result(share, context)
            return StubRunner._result(self, share, context)

    runner = Unequal(num_blocks=num_blocks, block_size=4)
    engine = make_engine(runner, speculation="prompt_lookup", prefix_caching=False)
    engine.add(repeating("repeats", max_tokens=100))
    engine.add(make_request("does not", prompt=5, max_tokens=40))
    drain(engine)
    assert engine.stats().num_preemptions == 0
    assert engine.stats().num_accepted_tokens > 20


def test_nobody_is_preempted_for_a_block_that_a_draft_took() -> None:
    """Where the one who guesses is expected to end sooner than it does, in crowded pools."""
    num_taken = 0
    for num_blocks, length in itertools.product(range(10, 18), range(1, 9)):
        runner = RepeatingRunner(num_blocks=num_blocks, block_size=4)
        engine = make_engine(runner, speculation="prompt_lookup", prefix_caching=False)
        for index in range(ENOUGH):
            engine.add(make_request(str(index), prompt=PERIOD, max_tokens=20))
            drain(engine)
        engine.add(make_request("longer", prompt=PERIOD, max_tokens=40))
        engine.add(make_request("beside it", prompt=length, max_tokens=30))
        took_blocks = False
        while engine.has_work:
            num_preemptions = engine.stats().num_preemptions
            engine.step()
            assert not took_blocks or engine.stats().num_preemptions == num_preemptions
            took_blocks = any(
                takes_blocks_for_drafts(share, 4) for share in runner.batches[-1].sequences
            )
            num_taken += took_blocks
    assert num_taken > 50


def test_those_who_are_answered_guess_in_equal_shares() -> None:
    runner = RepeatingRunner(num_blocks=200, max_model_len=100)
    runner.holds_until = 90
    engine = make_engine(runner, max_num_batched_tokens=64, speculation="prompt_lookup")
    for name in "abc":
        engine.add(repeating(name, max_tokens=60))
    drain(engine)
    crowded = [
        [share.num_drafts for share in batch.sequences]
        for batch in runner.batches
        if batch.num_tokens == MAX_ROWS and len(batch.sequences) == 3
    ]
    assert [2, 2, 1] in crowded
    assert all(max(drafts) <= 2 for drafts in crowded)


def test_a_tenant_pays_for_what_it_gets_and_not_for_guesses() -> None:
    """8 tokens of a prompt, and 2 for each token of the answer, after every step."""
    runner = RepeatingRunner()
    runner.holds_until = 25
    engine = make_engine(runner, speculation="prompt_lookup")
    engine.add(repeating(max_tokens=60))
    engine.step()
    (sequence,) = running(engine)
    while engine.has_work:
        assert sequence.account.counter == 8 + 2 * sequence.num_outputs
        engine.step()
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens


def test_the_pace_of_steps_counts_what_they_brought_on() -> None:
    """Of 8 tokens of a prompt and 30 of an answer at a second each step, whatever was guessed; and
    drafts are no tokens of prompts.
    """
    for holds_until in (10, 20, 100):
        clock, runner = Clock(), RepeatingRunner()
        runner.holds_until = holds_until
        runner.on_execute = lambda batch, clock=clock: setattr(clock, "now_s", clock.now_s + 1)  # type: ignore[misc]
        engine = make_engine(runner, speculation="prompt_lookup", clock=clock)
        engine.add(repeating())
        tokens = seconds = 0.0
        while engine.has_work:
            num_outputs = len(engine.step())
            tokens = tokens * DECAY + (num_outputs if seconds else 8)
            seconds = seconds * DECAY + 1
        cost = engine._scheduler.step_cost
        assert cost.tokens_per_s == pytest.approx(tokens / seconds)
        assert list(cost._prefills) == [(0, 8, 1.0)]
        assert engine.stats().num_draft_tokens > 0


@pytest.mark.parametrize("holds_until", [12, 15, 18, 40])
def test_a_choice_may_be_forked_behind_any_step_of_drafts(holds_until: int) -> None:
    """What rejected ones left in the parent's last block is none of the child's affair."""

    def new_runner() -> RepeatingRunner:
        runner = RepeatingRunner(block_size=16)
        runner.holds_until = holds_until
        return runner

    parent = repeating("parent", temperature=1.0, seed=3)
    child = repeating("child", temperature=1.0, seed=4)
    alone = {
        request.request_id: outputs_and_steps(request, speculates=False, runner=new_runner())[0]
        for request in (parent, child)
    }
    for num_steps in range(1, 6):
        engine, transcript = make_engine(new_runner(), speculation="prompt_lookup"), Transcript()
        engine.add(parent)
        for _ in range(num_steps):
            transcript.record(engine.step())
        engine.add(replace(child, fork_of="parent"))
        drain(engine, transcript)
        assert {name: transcript.of(name) for name in alone} == alone
        assert engine.stats().num_draft_tokens > 0
        assert engine.stats().prompt_tokens_total == 8


def test_a_crowded_step_has_no_drafts() -> None:
    runner = RepeatingRunner(num_blocks=400)
    engine = make_engine(
        runner, max_num_seqs=12, max_num_batched_tokens=200, speculation="prompt_lookup"
    )
    for index in range(12):
        engine.add(repeating(str(index), max_tokens=10 + index))
    drain(engine)
    for batch in runner.batches:
        if any(share.num_drafts for share in batch.sequences):
            assert batch.num_tokens <= MAX_ROWS
    assert engine.stats().num_draft_tokens > 0


def test_a_failed_step_with_drafts_ends_its_requests_alone() -> None:
    runner = RepeatingRunner()
    engine = make_engine(runner, speculation="prompt_lookup")
    engine.add(repeating())
    engine.step()

    def explode(batch: StepBatch) -> None:
        assert batch.sequences[0].num_drafts
        raise RuntimeError("injected")

    runner.on_execute = explode
    (output,) = engine.step()
    assert output.error is not None
    runner.on_execute = lambda batch: None
    engine.add(repeating("b"))
    assert len(drain(engine).tokens["b"]) == 30


def test_blocks_of_rejected_drafts_are_never_found_by_another_prompt() -> None:
    """The answer's own blocks are, and hold what plain decoding put there."""
    runner = RepeatingRunner(block_size=4)
    engine = make_engine(runner, speculation="prompt_lookup")
    request = repeating(max_tokens=60)
    engine.add(request)
    tokens, _ = drain(engine).of("a")
    again = make_request("b", prompt=(*request.prompt_token_ids, *tokens), max_tokens=1)
    engine.add(again)
    transcript = drain(engine)
    assert transcript.cached_tokens["b"] == (8 + 60 - 1) // 4 * 4


def test_accepting_a_guess_iff_it_is_drawn_keeps_the_distribution() -> None:
    """Over 40,000 seeds and p = (0.5, 0.3, 0.2), with the guess 1: it is accepted 0.3 of the time,
    what is drawn otherwise has the rest's distribution, and all together p.
    """
    draws = [
        0 if noise < 0.5 else 1 if noise < 0.8 else 2
        for noise in (uniform(seed, 17) for seed in range(40_000))
    ]
    counts = Counter(draws)
    for token_id, probability in enumerate((0.5, 0.3, 0.2)):
        assert counts[token_id] / 40_000 == pytest.approx(probability, abs=0.01)
    rejected = counts[0] + counts[2]
    assert rejected / 40_000 == pytest.approx(1 - 0.3, abs=0.01)
    assert counts[0] / rejected == pytest.approx(0.5 / 0.7, abs=0.01)
