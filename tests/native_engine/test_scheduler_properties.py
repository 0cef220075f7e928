"""Random tenants, classes, deadlines, clocks and crowded pools against the scheduler's promises.

The numbers are those of the promises in `test_engine_machine`; longer prompts and an endless flow
of requests are only here.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings, strategies as st

from native_engine.engine import Engine
from native_engine.sequence import Sequence
from native_engine.types import EngineRequest, FinishReason
from tests.native_engine.harness import (
    Clock,
    Transcript,
    expected,
    let_expect_short_outputs,
    make_engine,
    make_request,
)
from tests.native_engine.stub_runner import StubRunner


@dataclass(frozen=True, kw_only=True)
class World:
    """An engine's sizes, and the seed of what comes and goes."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    spare_budget: int
    max_bypass: int
    prefix_caching: bool
    speculates: bool
    seed: int


WORLDS = st.builds(
    World,
    num_blocks=st.integers(3, 20),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(1, 6),
    spare_budget=st.integers(0, 40),
    max_bypass=st.integers(0, 3),
    prefix_caching=st.booleans(),
    speculates=st.booleans(),
    seed=st.integers(0, 2**32),
)


def request_of(choose: random.Random, serial: int, longest: int) -> EngineRequest:
    """Prompts begin alike now and then; tenants, classes and weights go as they please."""
    prompt = choose.randint(1, longest - 1)
    stem = [choose.randint(0, 1)] * choose.randint(0, prompt)
    tail = choose.choices(range(50), k=prompt - len(stem))
    return make_request(
        str(serial),
        prompt=(*stem, *tail),
        max_tokens=choose.randint(1, 20),
        temperature=choose.choice([0.0, 1.0]),
        seed=serial,
        tenant=choose.choice("abc"),
        weight=choose.choice([0.5, 1.0, 3.0]),
        priority=choose.choice([0, 0, 0, 1, 3]),
        timeout_s=choose.choice([None, None, None, float(choose.randint(0, 60))]),
        ignore_eos=choose.random() < 0.3,
    )


def build(world: World, clock: Clock) -> tuple[StubRunner, Engine]:
    runner = StubRunner(num_blocks=world.num_blocks, block_size=world.block_size)
    engine = make_engine(
        runner,
        max_num_seqs=world.max_num_seqs,
        max_num_batched_tokens=world.max_num_seqs + world.spare_budget,
        max_waiting=100,
        max_bypass=world.max_bypass,
        prefix_caching=world.prefix_caching,
        speculation="prompt_lookup" if world.speculates else "off",
        clock=clock,
        aging_s=5.0,
    )
    let_expect_short_outputs(engine)
    return runner, engine


@settings(deadline=None, max_examples=150)
@given(WORLDS)
def test_every_request_ends_once_with_its_own_tokens_or_at_its_deadline(world: World) -> None:
    """1, 2, 3, 4, 7: books balance after each step; all end within a bound once none comes."""
    clock, choose = Clock(), random.Random(world.seed)
    runner, engine = build(world, clock)
    longest = min(30, world.num_blocks * world.block_size)
    requests = [request_of(choose, serial, longest) for serial in range(25)]
    transcript, gone = Transcript(), set[str]()
    coming = list(requests)
    while coming:
        for _ in range(choose.choice([0, 0, 1, 2, 8])):
            if coming:
                engine.add(coming.pop(0))
        if choose.random() < 0.05:
            gone.add(name := str(choose.randrange(len(requests) - len(coming) + 1)))
            engine.abort(name)
        clock.now_s += choose.choice([0.0, 0.1, 1.0, 7.0])
        transcript.record(engine.step())
        engine.check_invariants()
    work = sum(len(r.prompt_token_ids) + r.sampling.max_tokens for r in requests)
    for _ in range(len(requests) * work):
        if not engine.has_work:
            break
        clock.now_s += 0.1
        transcript.record(engine.step())
        engine.check_invariants()
    assert not engine.has_work
    assert engine.stats().num_free_blocks == world.num_blocks
    assert len(engine._scheduler._shares) == 0
    assert len(engine._scheduler.deadlines) == 0
    for request in requests:
        tokens, reason = expected(request, runner)
        got = transcript.tokens.get(request.request_id, [])
        assert got == tokens[: len(got)]
        ended = transcript.reasons.get(request.request_id)
        if ended is FinishReason.DEADLINE:
            assert request.timeout_s is not None
        elif ended is None:
            assert request.request_id in gone
        else:
            assert (got, ended) == (tokens, reason)


@settings(deadline=None, max_examples=60)
@given(WORLDS)
def test_one_of_the_lowest_class_ends_under_an_endless_flow_of_higher_ones(world: World) -> None:
    """7, E-PRIORITY-STARVE: more than can be served, of other tenants too, in a crowded pool."""
    clock, choose = Clock(), random.Random(world.seed)
    _, engine = build(world, clock)
    longest = min(30, world.num_blocks * world.block_size)
    engine.add(make_request("low", prompt=longest // 2 + 1, max_tokens=10, tenant="low"))
    for serial in range(4000):
        if engine.stats().num_waiting < 6:
            engine.add(
                make_request(
                    f"high {serial}",
                    prompt=tuple(choose.choices(range(50), k=choose.randint(1, longest - 1))),
                    max_tokens=choose.randint(1, 20),
                    tenant=choose.choice("abc"),
                    priority=choose.randint(1, 3),
                )
            )
        clock.now_s += 0.2
        outputs = engine.step()
        if any(o.request_id == "low" and o.finish_reason is not None for o in outputs):
            return
    raise AssertionError("4000 steps, and it has not ended")


@settings(deadline=None, max_examples=60)
@given(WORLDS)
def test_nobody_starts_while_a_higher_class_waits_that_could(world: World) -> None:
    """8: without age and with blocks for all, a class starts when no higher one waits."""
    clock, choose = Clock(), random.Random(world.seed)
    runner = StubRunner(num_blocks=400)
    engine = make_engine(
        runner,
        max_num_seqs=world.max_num_seqs,
        max_num_batched_tokens=world.max_num_seqs + world.spare_budget,
        max_waiting=100,
        clock=clock,
        aging_s=1e9,
        prefix_caching=False,
    )
    started: set[Sequence] = set()
    for serial in range(40):
        engine.add(request_of(choose, serial, 30))
        engine.step()
        running = set(engine._scheduler.running)
        waiting = [sequence.priority for sequence in engine._scheduler.waiting]
        for sequence in running - started:
            assert sequence.priority >= max(waiting, default=0)
        started = running
    while engine.has_work:
        engine.step()


@settings(deadline=None, max_examples=60)
@given(WORLDS)
def test_no_head_is_passed_by_more_than_may(world: World) -> None:
    """8: those that start after a sequence has become the head, and before it."""
    clock, choose = Clock(), random.Random(world.seed)
    _, engine = build(world, clock)
    scheduler = engine._scheduler
    longest = min(30, world.num_blocks * world.block_size)
    passed: Counter[str] = Counter()
    for serial in range(150):
        if len(scheduler.waiting) < 6:
            size = choose.randint(1, longest - 1)
            engine.add(
                make_request(
                    str(serial),
                    prompt=tuple(choose.choices(range(50), k=size)),
                    max_tokens=choose.randint(1, 20),
                )
            )
        head = scheduler.waiting.head(0.0) if scheduler.waiting else None
        before = set(scheduler.running)
        preemptions_before = scheduler.num_preemptions
        engine.step()
        if head is None or head not in scheduler.waiting:
            continue
        if scheduler.num_preemptions == preemptions_before:
            passed[head.request_id] += len(set(scheduler.running) - before)
        assert passed[head.request_id] <= world.max_bypass
