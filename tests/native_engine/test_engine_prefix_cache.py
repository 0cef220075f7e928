"""What the engine finds in its blocks again, and what it must not find."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from native_engine.engine import Engine
from native_engine.types import EngineRequest, LogitRules, StepBatch
from tests.native_engine.harness import Transcript, drain, expected, make_engine, make_request
from tests.native_engine.peeking import preempt, running
from tests.native_engine.stub_runner import StubRunner

LONG = tuple(range(1, 31))  # 7 blocks of 4, and half of one


class Pair:
    """An engine and its runner, which is told of every request and checks what it reads."""

    def __init__(self, *, num_blocks: int = 64, max_num_batched_tokens: int = 64) -> None:
        self.runner = StubRunner(num_blocks=num_blocks, block_size=4)
        self.engine = make_engine(
            self.runner, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=8
        )
        self._serials = itertools.count()

    def add(
        self, prompt: tuple[int, ...], *, max_tokens: int = 2, cache_salt: str = ""
    ) -> EngineRequest:
        request = make_request(
            str(next(self._serials)), prompt=prompt, max_tokens=max_tokens, cache_salt=cache_salt
        )
        self.runner.requests[request.request_id] = request
        self.engine.add(request)
        return request

    def run(
        self, *prompts: tuple[int, ...], max_tokens: int = 2, cache_salt: str = ""
    ) -> list[int]:
        """Run prompts together to their ends. Returns the cached tokens of each."""
        requests = [self.add(p, max_tokens=max_tokens, cache_salt=cache_salt) for p in prompts]
        transcript = drain(self.engine)
        for request in requests:
            assert transcript.of(request.request_id) == expected(request, self.runner)
        return [transcript.cached_tokens[request.request_id] for request in requests]

    @property
    def num_cached_blocks(self) -> int:
        return self.engine.stats().num_cached_blocks


def test_a_prompt_that_was_here_is_computed_from_its_last_block_on() -> None:
    pair = Pair()
    assert pair.run(LONG) == [0]
    before = pair.runner.num_tokens_computed
    assert pair.run(LONG) == [28]
    assert pair.runner.num_tokens_computed - before == 2 + 1  # of the prompt, and one decode


@pytest.mark.parametrize(("length", "cached"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_at_least_one_token_is_always_computed_for_its_logits(length: int, cached: int) -> None:
    pair = Pair()
    pair.run(LONG[:length])
    assert pair.run(LONG[:length]) == [cached]


def test_finds_as_much_as_the_prompts_have_in_common() -> None:
    pair = Pair()
    pair.run(LONG)
    assert pair.run((*LONG[:17], 40, 41, 42)) == [16]


def test_rules_look_back_on_what_was_found_too() -> None:
    """The stub holds the history that a penalty is counted from against the whole context."""
    pair = Pair()
    pair.run(LONG)
    rules = LogitRules(repetition_penalty=1.5)
    request = make_request("penalised", prompt=LONG, max_tokens=2, rules=rules)
    pair.engine.add(request)
    transcript = drain(pair.engine)
    assert transcript.cached_tokens["penalised"] == 28
    assert transcript.of("penalised") == expected(request, pair.runner)


def test_finds_what_was_generated_when_the_talk_goes_on() -> None:
    """The last generated token was never computed, so of 16 + 8 tokens 23 are in the blocks."""
    pair = Pair()
    first = pair.add(LONG[:16], max_tokens=8)
    answer, _ = drain(pair.engine).of(first.request_id)
    assert pair.run((*LONG[:16], *answer, 3, 1)) == [20]


def test_a_running_prompt_is_found_while_it_runs_and_its_blocks_are_shared() -> None:
    pair = Pair()
    pair.add(LONG, max_tokens=6)
    pair.engine.step()
    used = pair.engine.stats().num_free_blocks
    pair.add(LONG, max_tokens=6)
    pair.engine.step()
    assert used - pair.engine.stats().num_free_blocks == 1
    drain(pair.engine)


def test_another_salt_finds_nothing_and_an_equal_one_all() -> None:
    """GHSA-rm76-4mrf-v9r8 (vLLM): nobody reads or times what another asked."""
    pair = Pair()
    pair.run(LONG, cache_salt="one")
    assert pair.run(LONG, cache_salt="two") == [0]
    assert pair.run(LONG) == [0]
    assert pair.run(LONG, cache_salt="one") == [28]


def test_counts_tokens_looked_for_and_tokens_found() -> None:
    pair = Pair()
    pair.run(LONG)
    pair.run(LONG)
    stats = pair.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (60, 28)
    assert stats.num_cached_blocks == 7
    assert stats.num_free_blocks == stats.num_blocks


def test_finds_and_counts_nothing_when_switched_off() -> None:
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=False)
    for request_id in "ab":
        engine.add(make_request(request_id, prompt=20))
        assert drain(engine).cached_tokens == {request_id: 0}
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_cached_blocks) == (
        0,
    ) * 3


def test_a_block_is_found_only_after_the_step_that_filled_it() -> None:
    """TGI #2489: in the middle of the step nothing has a name yet."""
    pair = Pair()
    named: list[int] = []
    pair.runner.on_execute = lambda batch: named.append(pair.num_cached_blocks)
    pair.add(LONG)
    pair.engine.step()
    assert named == [0]
    assert pair.num_cached_blocks == 7


def test_a_failing_step_publishes_nothing() -> None:
    """SGLang #38319: chunks of 12 tokens; the second fails half written."""
    pair = Pair(max_num_batched_tokens=12)

    def explode(batch: StepBatch) -> None:
        pair.runner.wipe(batch)
        raise RuntimeError("injected")

    pair.add(LONG)
    pair.engine.step()
    pair.runner.on_execute = explode
    pair.engine.step()
    pair.runner.on_execute = lambda batch: None
    assert pair.num_cached_blocks == 3
    assert pair.run(LONG) == [12]


def test_a_request_aborted_while_its_step_runs_publishes_nothing() -> None:
    """SGLang #38319: its blocks are free, and may be another's, before the step ends."""
    pair = Pair()
    request = pair.add(LONG)
    pair.runner.on_execute = lambda batch: pair.engine.abort(request.request_id)
    pair.engine.step()
    pair.runner.on_execute = lambda batch: None
    assert pair.num_cached_blocks == 0
    assert pair.run(LONG) == [0]


def test_a_preempted_request_finds_its_own_blocks_and_says_nothing_of_them() -> None:
    pair = Pair()
    pair.add((9, 9, 9), max_tokens=9)
    request = pair.add(LONG, max_tokens=6)
    transcript = Transcript()
    for _ in range(2):
        transcript.record(pair.engine.step())
    preempt(pair.engine, running(pair.engine)[-1])
    before = pair.runner.num_tokens_computed
    drain(pair.engine, transcript)
    assert transcript.of(request.request_id) == expected(request, pair.runner)
    assert transcript.cached_tokens[request.request_id] == 0
    assert pair.runner.num_tokens_computed - before < 2 * 9


def test_two_equal_cold_prompts_in_one_step_compute_it_once() -> None:
    pair = Pair()
    assert pair.run(LONG, LONG, LONG) == [0, 28, 28]
    assert pair.runner.num_tokens_computed == 30 + 2 * 2 + 3


def test_waits_for_a_neighbour_no_longer_than_one_step() -> None:
    """The neighbour's step fails, so there is nothing to find: it computes by itself."""
    pair = Pair()
    first, second = pair.add(LONG), pair.add(LONG)

    def explode(batch: StepBatch) -> None:
        assert [share.request_id for share in batch.sequences] == [first.request_id]
        raise RuntimeError("injected")

    pair.runner.on_execute = explode
    pair.engine.step()
    pair.runner.on_execute = lambda batch: None
    pair.engine.step()
    assert pair.engine.stats().num_waiting == 0
    assert drain(pair.engine).tokens.keys() == {second.request_id}


@pytest.mark.parametrize(("length", "num_waiting"), [(8, 0), (9, 1)])
def test_waits_for_two_blocks_and_not_for_one(length: int, num_waiting: int) -> None:
    pair = Pair()
    pair.add(LONG[:length])
    pair.add(LONG[:length])
    pair.engine.step()
    assert pair.engine.stats().num_waiting == num_waiting


def test_waits_for_nobody_under_another_salt() -> None:
    pair = Pair()
    pair.add(LONG, cache_salt="one")
    pair.add(LONG, cache_salt="two")
    pair.engine.step()
    assert pair.engine.stats().num_waiting == 0


def test_what_is_cached_need_not_be_free_for_a_request_to_be_admitted() -> None:
    """10 blocks: the first holds 8, and the second shares 7 of them; cold it would not fit."""
    pair = Pair(num_blocks=10)
    pair.add(LONG, max_tokens=3)
    pair.engine.step()
    pair.add(LONG, max_tokens=3)
    pair.engine.step()
    assert pair.engine.stats().num_running == 2
    drain(pair.engine)


def test_overwrites_what_was_used_least_recently_and_its_tail_first() -> None:
    """16 blocks: two prompts of 7 full blocks; the older is used again before a third comes."""
    pair = Pair(num_blocks=16)
    older, newer, third = LONG, tuple(t + 1 for t in LONG), (0,) * 22
    pair.run(older)
    pair.run(newer)
    assert pair.run(older) == [28]
    pair.run(third)  # takes the 2 clean blocks and 4 of `newer`
    assert pair.run(newer[:13]) == [12]
    assert pair.run(older) == [28]


def test_a_whole_pool_of_cached_blocks_is_as_good_as_free() -> None:
    pair = Pair(num_blocks=8)
    for token in range(20):
        pair.run((token,) * 29)
        assert pair.engine.stats().num_free_blocks == 8


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([LONG, LONG[1:]]), st.integers(1, 30)), min_size=1, max_size=8
    ),
    st.integers(9, 24),
    st.integers(8, 40),
)
def test_off_cold_and_warm_answer_alike(
    cuts: list[tuple[tuple[int, ...], int]], num_blocks: int, budget: int
) -> None:
    def answers(engine: Engine, name: str) -> list[list[int]]:
        ids = [f"{name}{i}" for i in range(len(cuts))]
        for request_id, (stem, length) in zip(ids, cuts, strict=True):
            engine.add(make_request(request_id, prompt=stem[:length]))
        transcript = drain(engine)
        return [transcript.tokens[request_id] for request_id in ids]

    def engine(*, prefix_caching: bool) -> Engine:
        return make_engine(
            StubRunner(num_blocks=num_blocks),
            max_num_batched_tokens=budget,
            prefix_caching=prefix_caching,
        )

    caching = engine(prefix_caching=True)
    cold, warm = answers(caching, "cold"), answers(caching, "warm")
    assert cold == warm == answers(engine(prefix_caching=False), "off")
