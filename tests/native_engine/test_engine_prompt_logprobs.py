"""The engine collects a prompt's log-probabilities from its chunks, and hands them out once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from native_engine.types import FinishReason
from tests.native_engine.harness import Transcript, drain, expected, make_engine, make_request
from tests.native_engine.peeking import preempt, running
from tests.native_engine.stub_runner import StubRunner, prompt_logprobs

PROMPT = tuple(range(1, 31))  # 7 blocks of 4, and half of one


@pytest.mark.parametrize("budget", [4, 5, 7, 29, 30, 64])
def test_comes_whole_on_the_first_output_however_the_prompt_is_cut(budget: int) -> None:
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=budget)
    asking = make_request("asking", prompt=PROMPT, num_prompt_logprobs=0)
    plain = make_request("plain", prompt=8)
    engine.add(plain)
    engine.add(asking)
    transcript = drain(engine)  # which holds that there is one output with them
    assert transcript.prompt_logprobs == {"asking": prompt_logprobs(PROMPT)}
    for request in (asking, plain):
        assert transcript.of(request.request_id) == expected(request, runner)


def test_comes_with_the_first_output_and_not_before() -> None:
    engine = make_engine(StubRunner(), max_num_batched_tokens=10)
    engine.add(make_request("r", prompt=PROMPT, max_tokens=2, num_prompt_logprobs=0))
    outputs = [engine.step() for _ in range(4)]
    assert [len(step) for step in outputs] == [0, 0, 1, 1]
    assert outputs[2][0].token is not None
    assert outputs[2][0].prompt_logprobs == prompt_logprobs(PROMPT)
    assert outputs[3][0].prompt_logprobs is None


def test_a_prompt_of_one_token_has_none_to_tell() -> None:
    engine = make_engine(StubRunner())
    engine.add(make_request("r", prompt=1, num_prompt_logprobs=3))
    assert drain(engine).prompt_logprobs == {"r": ()}


def test_a_warm_prompt_is_computed_whole_and_told_whole() -> None:
    """E-PREFIX-PROMPT-LOGPROBS: such a request writes the cache, and does not read it."""
    engine = make_engine(runner := StubRunner(), max_num_batched_tokens=64)
    for request_id in "ab":
        engine.add(make_request(request_id, prompt=PROMPT, num_prompt_logprobs=0))
        transcript = drain(engine)
        assert transcript.prompt_logprobs == {request_id: prompt_logprobs(PROMPT)}
        assert transcript.cached_tokens == {request_id: 0}
    assert engine.stats().prefix_cache_queries == 0
    plain = make_request("plain", prompt=PROMPT)
    engine.add(plain)
    transcript = drain(engine)
    assert transcript.cached_tokens == {"plain": 28}
    assert transcript.of("plain") == expected(plain, runner)
    assert engine.stats().prefix_cache_queries == len(PROMPT)


@pytest.mark.parametrize("prefix_caching", [True, False], ids=["cached", "off"])
def test_who_asks_is_forked_from_nobody_and_others_are_forked_from_it(prefix_caching: bool) -> None:
    """The prompt is computed once for each who asks, at once, and once for all the others."""
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=64, prefix_caching=prefix_caching)
    parent = make_request("parent", prompt=PROMPT, num_prompt_logprobs=0)
    asking = make_request("asking", prompt=PROMPT, num_prompt_logprobs=0, fork_of="parent")
    plain = make_request("plain", prompt=PROMPT, fork_of="parent")
    for request in (parent, asking, plain):
        engine.add(request)
    transcript = Transcript()
    transcript.record(engine.step())
    told = prompt_logprobs(PROMPT)
    assert transcript.prompt_logprobs == {"parent": told, "asking": told}
    drain(engine, transcript)
    for request in (parent, asking, plain):
        assert transcript.of(request.request_id) == expected(request, runner)
    assert transcript.prompt_logprobs == {"parent": told, "asking": told}
    assert runner.num_tokens_computed == 2 * len(PROMPT) + 1 + 3 * (6 - 1)
    assert engine.stats().prompt_tokens_total == 2 * len(PROMPT)


@pytest.mark.parametrize("steps", range(1, 14))
def test_a_preemption_at_any_step_neither_loses_nor_repeats_them(steps: int) -> None:
    runner = StubRunner(num_blocks=14, block_size=4)
    engine = make_engine(runner, max_num_batched_tokens=6)
    requests = [
        make_request("oldest", prompt=6, max_tokens=12),
        make_request("asking", prompt=PROMPT[:20], max_tokens=6, num_prompt_logprobs=0),
    ]
    for request in requests:
        engine.add(request)
    transcript = Transcript()
    for _ in range(steps):
        transcript.record(engine.step())
    while len(running(engine)) > 1:
        preempt(engine, running(engine)[-1])
        engine.check_invariants()
    drain(engine, transcript)
    assert transcript.prompt_logprobs == {"asking": prompt_logprobs(PROMPT[:20])}
    for request in requests:
        assert transcript.of(request.request_id) == expected(request, runner)


def test_what_has_been_handed_out_is_not_computed_again() -> None:
    """A sequence that has its log-probabilities comes back like any other, from the cache too."""
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=64)
    engine.add(make_request("oldest", prompt=6, max_tokens=20))
    asking = make_request("asking", prompt=PROMPT, max_tokens=6, num_prompt_logprobs=0)
    engine.add(asking)
    transcript = Transcript()
    transcript.record(engine.step())
    assert runner.num_scored == len(PROMPT) - 1
    computed = runner.num_tokens_computed
    preempt(engine, running(engine)[-1])
    transcript.record(engine.step())
    assert runner.num_tokens_computed - computed == 1 + 31 - 28
    drain(engine, transcript)
    assert runner.num_scored == len(PROMPT) - 1
    assert transcript.of("asking") == expected(asking, runner)


def test_a_request_for_no_tokens_ends_with_its_prompt() -> None:
    """I-MAX-TOKENS-ZERO: one output, counted as a prompt and nothing generated."""
    engine = make_engine(StubRunner(), max_num_batched_tokens=8)
    engine.add(make_request("r", prompt=PROMPT, max_tokens=0, num_prompt_logprobs=0))
    engine.add(make_request("plain", prompt=3, max_tokens=0))
    outputs = [output for _ in range(5) for output in engine.step()]
    assert not engine.has_work
    assert [(output.request_id, output.token) for output in outputs] == [
        ("r", None),
        ("plain", None),
    ]
    assert {output.finish_reason for output in outputs} == {FinishReason.LENGTH}
    assert [output.prompt_logprobs for output in outputs] == [prompt_logprobs(PROMPT), None]
    assert outputs[0].queue_s is not None
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (len(PROMPT) + 3, 0)
    assert stats.num_free_blocks == stats.num_blocks


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 24), st.integers(0, 8), st.sampled_from([None, 0])),
        min_size=1,
        max_size=6,
    ),
    budget=st.integers(4, 24),
    num_blocks=st.integers(9, 24),
)
def test_any_mix_gets_what_each_asked_for(
    sizes: list[tuple[int, int, int | None]], budget: int, num_blocks: int
) -> None:
    """Scarce blocks, shared beginnings, some that ask and some that want no token."""
    runner = StubRunner(num_blocks=num_blocks, block_size=4)
    engine = make_engine(runner, max_num_batched_tokens=budget)
    requests = [
        make_request(str(i), prompt=prompt, max_tokens=max_tokens, num_prompt_logprobs=asked)
        for i, (prompt, max_tokens, asked) in enumerate(sizes)
    ]
    for request in requests:
        engine.add(request)
    transcript = drain(engine)
    asking = [r for r in requests if r.sampling.num_prompt_logprobs is not None]
    assert transcript.prompt_logprobs == {
        request.request_id: prompt_logprobs(request.prompt_token_ids) for request in asking
    }
    for request in requests:
        if request.sampling.max_tokens:
            assert transcript.of(request.request_id) == expected(request, runner)
        else:
            assert request.request_id not in transcript.tokens
