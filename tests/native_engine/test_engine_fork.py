"""Requests with one prompt: it is computed once, and nobody can tell from what they yield."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from native_engine.answering import MAX_FAILED_STEPS
from native_engine.engine import Engine
from native_engine.errors import EngineError
from native_engine.types import EngineRequest, LogitRules, StepBatch
from tests.native_engine.harness import Transcript, drain, expected, make_engine, make_request
from tests.native_engine.peeking import preempt, running
from tests.native_engine.stub_runner import StubRunner

every_cache = pytest.mark.parametrize("prefix_caching", [True, False], ids=["cached", "off"])


def family(
    n: int, *, prompt: int | tuple[int, ...] = 10, name: str = "", max_tokens: int = 6
) -> list[EngineRequest]:
    """A parent and its children, each with a seed of its own."""
    return [
        make_request(
            f"{name}{index}",
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=1.0,
            seed=100 + index,
            fork_of=f"{name}0" if index else None,
        )
        for index in range(n)
    ]


def add(engine: Engine, runner: StubRunner, requests: Sequence[EngineRequest]) -> None:
    for request in requests:
        runner.requests[request.request_id] = request
        engine.add(request)


def check(transcript: Transcript, runner: StubRunner, requests: Sequence[EngineRequest]) -> None:
    """Each yields what it yields alone."""
    for request in requests:
        assert transcript.of(request.request_id) == expected(request, runner)


def request_ids(batch: StepBatch) -> list[str]:
    return [share.request_id for share in batch.sequences]


@every_cache
@pytest.mark.parametrize("budget", [4, 64])
@pytest.mark.parametrize(
    ("length", "num_copies"), [(1, 0), (2, 3), (4, 3), (5, 0), (6, 3), (20, 3), (21, 0)]
)
def test_children_compute_no_more_than_the_last_token_of_their_prompt(
    length: int, num_copies: int, budget: int, prefix_caching: bool
) -> None:
    """Blocks of 4: a child copies the block of its last prompt token, unless that begins one."""
    runner = StubRunner(block_size=4)
    engine = make_engine(runner, max_num_batched_tokens=budget, prefix_caching=prefix_caching)
    requests = family(4, prompt=length)
    add(engine, runner, requests)
    check(drain(engine), runner, requests)
    assert runner.num_tokens_computed == length + 3 + 4 * (6 - 1)
    assert sum(len(batch.copies) for batch in runner.batches) == num_copies


@every_cache
def test_n_children_yield_what_n_lone_requests_yield(prefix_caching: bool) -> None:
    """5: the stub draws from (seed, position); equal seeds would show, and a shared slot too."""
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=prefix_caching)
    requests = family(4)
    add(engine, runner, requests)
    together = drain(engine)
    lone = make_engine(StubRunner(), prefix_caching=prefix_caching)
    alone = Transcript()
    for request in requests:
        lone.add(request)
        drain(lone, alone)
    assert together.tokens == alone.tokens
    assert len(set(map(tuple, together.tokens.values()))) == 4


def test_a_child_waits_for_its_parent_s_prompt_and_holds_nobody_up() -> None:
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=16)
    requests = [*family(2, prompt=40), make_request("other", prompt=(9, 8, 7))]
    add(engine, runner, requests)
    transcript = Transcript()
    for _ in range(4):
        transcript.record(engine.step())
    assert [request_ids(batch) for batch in runner.batches] == [
        ["0"],
        ["0"],
        ["0", "other"],
        ["0", "1", "other"],
    ]
    check(drain(engine, transcript), runner, requests)


@every_cache
def test_a_child_admitted_late_forks_a_parent_far_ahead(prefix_caching: bool) -> None:
    """Its copy of the parent's block has tokens of the parent's in it, which it writes over."""
    runner = StubRunner(num_blocks=64)
    engine = make_engine(runner, max_num_seqs=2, prefix_caching=prefix_caching)
    requests = [
        make_request("other", prompt=(9, 8, 7), max_tokens=11),
        *family(2, prompt=6, max_tokens=20),
    ]
    add(engine, runner, requests)
    check(drain(engine), runner, requests)
    assert runner.num_tokens_computed == (3 + 10) + (6 + 19) + (1 + 19)


@every_cache
def test_a_child_can_be_forked_from_a_child_that_is_forked_in_the_same_step(
    prefix_caching: bool,
) -> None:
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=prefix_caching)
    requests = family(2, prompt=10)
    requests.append(make_request("2", prompt=10, temperature=1.0, seed=5, fork_of="1"))
    add(engine, runner, requests)
    check(drain(engine), runner, requests)
    copies = next(batch.copies for batch in runner.batches if batch.copies)
    assert copies[0][1] == copies[1][0]


@every_cache
def test_rules_look_back_on_a_forked_prompt_too(prefix_caching: bool) -> None:
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=prefix_caching)
    rules = LogitRules(repetition_penalty=1.5)
    requests = [
        make_request("0", prompt=10, rules=rules),
        make_request("1", prompt=10, rules=rules, fork_of="0"),
    ]
    add(engine, runner, requests)
    check(drain(engine), runner, requests)


def test_a_prompt_is_counted_once_and_what_was_forked_is_no_cache_hit() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    add(engine, runner, family(3, prompt=10, name="cold"))
    assert drain(engine).cached_tokens == {"cold0": 0, "cold1": 0, "cold2": 0}
    add(engine, runner, family(3, prompt=10, name="warm"))
    assert drain(engine).cached_tokens == {"warm0": 8, "warm1": 0, "warm2": 0}
    stats = engine.stats()
    assert stats.prompt_tokens_total == stats.prefix_cache_queries == 20
    assert stats.prefix_cache_hits == 8


@every_cache
@pytest.mark.parametrize("steps", range(12))
def test_children_are_right_whenever_their_parent_is_aborted(
    steps: int, prefix_caching: bool
) -> None:
    """S-ABORT-N: queued, mid-chunk, forked from, decoding; during the step or between two."""
    for during_a_step in (False, True):
        runner = StubRunner()
        engine = make_engine(runner, max_num_batched_tokens=8, prefix_caching=prefix_caching)
        requests = family(4, prompt=22)
        add(engine, runner, requests)
        transcript = Transcript()
        for _ in range(steps):
            transcript.record(engine.step())
        if during_a_step:
            runner.on_execute = lambda batch, engine=engine: engine.abort("0")  # type: ignore[misc]
            transcript.record(engine.step())
            runner.on_execute = lambda batch: None
        else:
            engine.abort("0")
        engine.check_invariants()
        check(drain(engine, transcript), runner, requests[1:])


@every_cache
@pytest.mark.parametrize("steps", range(10))
def test_aborting_parent_and_children_leaves_nothing(steps: int, prefix_caching: bool) -> None:
    """S-ABORT-N."""
    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=8, prefix_caching=prefix_caching)
    requests = family(4, prompt=22, max_tokens=100)
    add(engine, runner, requests)
    for _ in range(steps):
        engine.step()
    for request in requests:
        engine.abort(request.request_id)
        engine.check_invariants()
    assert not engine.has_work
    assert engine._sequences == {}
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks


@every_cache
def test_children_of_a_parent_that_ended_compute_the_prompt_themselves(
    prefix_caching: bool,
) -> None:
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=prefix_caching)
    requests = family(2, prompt=10, max_tokens=1)
    add(engine, runner, requests)
    transcript = drain(engine)
    check(transcript, runner, requests)
    assert transcript.cached_tokens["1"] == (8 if prefix_caching else 0)
    assert engine.stats().prompt_tokens_total == 20


@every_cache
def test_children_do_not_wait_for_a_parent_that_was_preempted(prefix_caching: bool) -> None:
    runner = StubRunner(num_blocks=64)
    engine = make_engine(runner, max_num_batched_tokens=8, prefix_caching=prefix_caching)
    oldest = make_request("oldest", prompt=(7,), max_tokens=20)
    requests = [oldest, *family(2, prompt=20)]
    add(engine, runner, requests)
    transcript = Transcript()
    for _ in range(2):
        transcript.record(engine.step())
    parent, child = engine._sequences["0"], engine._sequences["1"]
    assert 0 < parent.num_computed_tokens < 19
    assert child.waits_for_parent
    preempt(engine, parent)
    assert not child.waits_for_parent
    check(drain(engine, transcript), runner, requests)


@every_cache
def test_a_forked_child_that_is_preempted_comes_back_by_itself(prefix_caching: bool) -> None:
    runner = StubRunner()
    engine = make_engine(runner, prefix_caching=prefix_caching)
    requests = family(3, prompt=10)
    add(engine, runner, requests)
    transcript = Transcript()
    for _ in range(3):
        transcript.record(engine.step())
    for _ in range(2):
        preempt(engine, running(engine)[-1])
        engine.check_invariants()
    drain(engine, transcript)
    check(transcript, runner, requests)
    assert transcript.cached_tokens == {"0": 0, "1": 0, "2": 0}


@every_cache
@pytest.mark.parametrize("failing", range(3))
def test_a_failed_step_takes_those_in_it_and_no_sibling(failing: int, prefix_caching: bool) -> None:
    """Prompts of 12 in chunks of 8: the parent alone twice, then with its children."""

    def explode(batch: StepBatch) -> None:
        runner.wipe(batch)
        raise RuntimeError("injected")

    runner = StubRunner()
    engine = make_engine(runner, max_num_batched_tokens=8, prefix_caching=prefix_caching)
    requests = family(3, prompt=12)
    add(engine, runner, requests)
    transcript = Transcript()
    for _ in range(failing):
        transcript.record(engine.step())
    runner.on_execute = explode
    transcript.record(engine.step())
    runner.on_execute = lambda batch: None
    drain(engine, transcript)
    failed = ["0"] if failing < 2 else ["0", "1", "2"]
    assert list(transcript.errors) == failed
    check(transcript, runner, [r for r in requests if r.request_id not in failed])


@pytest.mark.parametrize(("prompt", "salt"), [((1, 2, 4), ""), ((1, 2), ""), ((1, 2, 3), "other")])
def test_refuses_a_parent_with_another_prompt_or_salt(prompt: tuple[int, ...], salt: str) -> None:
    """Nothing of one salt is ever shared with another, even if asked for."""
    engine = make_engine(StubRunner())
    engine.add(make_request("0", prompt=3))
    with pytest.raises(EngineError, match="1 cannot be forked from 0, which has another prompt or"):
        engine.add(make_request("1", prompt=prompt, cache_salt=salt, fork_of="0"))
    assert list(drain(engine).reasons) == ["0"]


def test_the_prompt_of_a_parent_that_has_outputs_is_still_its_prompt() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    parent, child = family(2)
    add(engine, runner, [parent])
    transcript = Transcript()
    transcript.record(engine.step())
    add(engine, runner, [child])
    check(drain(engine, transcript), runner, [parent, child])
    assert runner.num_tokens_computed == 10 + 5 + 1 + 5


def test_a_parent_that_nobody_knows_is_no_error() -> None:
    runner = StubRunner()
    engine = make_engine(runner)
    requests = [make_request("1", fork_of="gone"), make_request("2", fork_of="2")]
    add(engine, runner, requests)
    check(drain(engine), runner, requests)


PROMPTS = st.sampled_from([tuple(range(1, length + 1)) for length in (1, 3, 4, 5, 8, 9, 14)])


@settings(deadline=None, max_examples=150)
@given(
    families=st.lists(st.tuples(st.integers(1, 4), PROMPTS, st.sampled_from("ab")), max_size=4),
    num_blocks=st.integers(5, 24),
    budget=st.integers(4, 20),
    prefix_caching=st.booleans(),
    data=st.data(),
)
def test_any_traffic_of_families_yields_what_they_yield_alone(
    families: list[tuple[int, tuple[int, ...], str]],
    num_blocks: int,
    budget: int,
    prefix_caching: bool,
    data: st.DataObject,
) -> None:
    """Small pools preempt; requests are aborted between steps and during them; steps fail."""
    runner = StubRunner(num_blocks=num_blocks)
    engine = make_engine(
        runner, max_num_batched_tokens=budget, max_waiting=20, prefix_caching=prefix_caching
    )
    live: dict[str, EngineRequest] = {}
    transcript = Transcript()
    num_failed = 0

    def interfere(batch: StepBatch) -> None:
        nonlocal num_failed
        what = data.draw(st.sampled_from(["", "", "", "abort", "fail"]))
        unfinished = sorted(live.keys() - transcript.reasons.keys() - transcript.errors.keys())
        if what == "abort" and unfinished:
            request_id = data.draw(st.sampled_from(unfinished))
            del live[request_id]
            engine.abort(request_id)
        elif what == "fail" and num_failed < MAX_FAILED_STEPS - 1:
            num_failed += 1
            runner.wipe(batch)
            raise RuntimeError("injected")

    runner.on_execute = interfere
    for serial, (n, prompt, salt) in enumerate(families):
        requests = [
            make_request(
                f"{serial}{index}",
                prompt=prompt,
                temperature=1.0,
                seed=index,
                cache_salt=salt,
                fork_of=f"{serial}0" if index else None,
            )
            for index in range(n)
        ]
        add(engine, runner, requests)
        live.update({request.request_id: request for request in requests})
        for _ in range(data.draw(st.integers(0, 3))):
            transcript.record(engine.step())
            engine.check_invariants()
    drain(engine, transcript)
    for request_id in transcript.errors:
        del live[request_id]
    check(transcript, runner, list(live.values()))


def test_no_order_of_ends_keeps_a_block() -> None:
    """Every order in which three siblings can be aborted, at every step."""
    for order, steps in itertools.product(itertools.permutations("012"), range(6)):
        runner = StubRunner()
        engine = make_engine(runner, max_num_batched_tokens=8, prefix_caching=False)
        add(engine, runner, family(3, prompt=10, max_tokens=50))
        for _ in range(steps):
            engine.step()
        for request_id in order:
            engine.abort(request_id)
            engine.check_invariants()
        assert engine.stats().num_free_blocks == engine.info.num_blocks
