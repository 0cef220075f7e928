"""Tenants get tokens by their weights: the counters by themselves, and what the engine makes of
them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from native_engine.engine import Engine
from native_engine.fairness import INPUT_COST, OUTPUT_COST, FairShares
from native_engine.types import EngineRequest, StepBatch
from tests.native_engine.harness import (
    drain,
    let_expect_short_outputs,
    make_engine,
    make_request,
)
from tests.native_engine.stub_runner import StubRunner


class TestFairShares:
    def test_a_newcomer_starts_at_the_least_counter_of_those_that_are_there(self) -> None:
        shares = FairShares()
        ahead, behind = shares.join("ahead"), shares.join("behind")
        ahead.counter, behind.counter = 50.0, 30.0
        assert shares.join("new").counter == 30.0

    def test_who_was_idle_is_lifted_and_has_no_arrears(self) -> None:
        shares = FairShares()
        busy = shares.join("busy")
        shares.leave(shares.join("idle"))
        busy.counter = 1000.0
        assert shares.join("idle").counter == 1000.0

    def test_who_leaves_ahead_comes_back_ahead(self) -> None:
        shares = FairShares()
        shares.join("patient")
        greedy = shares.join("greedy")
        greedy.counter = 40.0
        shares.leave(greedy)
        assert shares.join("greedy").counter == 40.0

    def test_a_tenant_has_one_account_while_it_has_sequences(self) -> None:
        shares = FairShares()
        first = shares.join("a")
        assert shares.join("a") is first
        shares.leave(first)
        assert shares.join("a") is first

    def test_forgets_an_idle_tenant_once_nobody_is_behind_it(self) -> None:
        shares = FairShares()
        busy = shares.join("busy")
        for index in range(10):
            account = shares.join(str(index))
            account.counter += index + 1
            shares.leave(account)
        assert len(shares) == 11
        busy.counter = 5.0
        shares.join("next")
        assert len(shares) == 2 + 5  # the first five have been passed

    def test_forgets_all_when_nobody_is_left(self) -> None:
        shares = FairShares()
        accounts = [shares.join(str(index)) for index in range(5)]
        for account in accounts:
            account.counter += 10
            shares.leave(account)
        assert len(shares) == 0
        assert shares.join("0").counter == 0.0


class Service:
    """What each tenant has been served, counted from what the runner computed, and nothing else.

    A request's id begins with its tenant's name and a colon.
    """

    def __init__(self) -> None:
        self.tokens: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()  # prompt tokens of each request that were computed
        self.prompt_lengths: dict[str, int] = {}
        self.order: list[str] = []  # in which requests began

    def __call__(self, batch: StepBatch) -> None:
        for share in batch.sequences:
            tenant = share.request_id.partition(":")[0]
            if share.request_id not in self._seen:
                self.order.append(share.request_id)
            stop = min(share.start + len(share.token_ids), self.prompt_lengths[share.request_id])
            fresh = max(0, stop - max(share.start, self._seen[share.request_id]))
            self._seen[share.request_id] = max(self._seen[share.request_id], stop)
            self.tokens[tenant] += int(INPUT_COST) * fresh + int(OUTPUT_COST) * share.sample


class Backlog:
    """Tenants that always have more requests waiting than can run."""

    DEPTH = 7

    def __init__(self, engine: Engine, runner: StubRunner) -> None:
        self.engine = engine
        self.service = Service()
        runner.on_execute = self.service
        self._serials = itertools.count()

    def add(self, tenant: str, *, prompt: int, max_tokens: int, weight: float = 1.0) -> None:
        serial = next(self._serials)
        request = make_request(
            f"{tenant}:{serial}",
            prompt=tuple(random.Random(serial).choices(range(50), k=prompt)),
            max_tokens=max_tokens,
            tenant=tenant,
            weight=weight,
        )
        self.service.prompt_lengths[request.request_id] = prompt
        self.engine.add(request)

    def top_up(self, tenant: str, make: Callable[[], tuple[int, int]], weight: float = 1.0) -> None:
        waiting = Counter(sequence.tenant for sequence in self.engine._scheduler.waiting)
        for _ in range(self.DEPTH - waiting[tenant]):
            prompt, max_tokens = make()
            self.add(tenant, prompt=prompt, max_tokens=max_tokens, weight=weight)


SIZES = st.tuples(st.integers(1, 12), st.integers(1, 14))  # most tokens of prompts, of outputs


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.tuples(SIZES, SIZES),
    num_blocks=st.integers(8, 20),
    max_num_seqs=st.integers(1, 6),
    spare_budget=st.integers(0, 16),
    max_bypass=st.integers(0, 4),
    seed=st.integers(0, 2**32),
)
def test_two_backlogged_tenants_never_drift_apart(
    sizes: tuple[tuple[int, int], tuple[int, int]],
    num_blocks: int,
    max_num_seqs: int,
    spare_budget: int,
    max_bypass: int,
    seed: int,
) -> None:
    """9, theorem 4.4 of arXiv:2401.00588: |W_1 - W_2| <= 2 max(w_in L_input, w_out M) at all times.

    W_i is what tenant i has been served since both began to wait, w_in and w_out what a token of
    input and output counts, L_input the longest prompt and M the tokens that the blocks hold. Run
    until each has been served several times the bound, so that any steady drift would exceed it.
    """
    block_size = 4
    runner = StubRunner(num_blocks=num_blocks, block_size=block_size)
    engine = make_engine(
        runner,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + spare_budget,
        max_waiting=20,
        max_bypass=max_bypass,
    )
    backlog = Backlog(engine, runner)
    served = backlog.service.tokens
    choose = random.Random(seed)
    longest_prompt = max(prompt for prompt, _ in sizes)
    bound = 2 * max(INPUT_COST * longest_prompt, OUTPUT_COST * num_blocks * block_size)
    makers = {
        tenant: lambda size=size: (choose.randint(1, size[0]), choose.randint(1, size[1]))
        for tenant, size in zip("ab", sizes, strict=True)
    }
    while min(served["a"], served["b"]) < 4 * bound:
        for tenant, make in makers.items():
            backlog.top_up(tenant, make)
        engine.step()
        assert abs(served["a"] - served["b"]) <= bound
    engine.check_invariants()


def test_weights_of_three_to_one_get_tokens_three_to_one() -> None:
    """9: within 5 %."""
    runner = StubRunner(num_blocks=40)
    engine = make_engine(runner, max_num_batched_tokens=24, max_waiting=20)
    backlog = Backlog(engine, runner)
    choose = random.Random(0)
    while sum(backlog.service.tokens.values()) < 30_000:
        backlog.top_up("three", lambda: (choose.randint(1, 20), choose.randint(1, 20)), 3.0)
        backlog.top_up("one", lambda: (choose.randint(1, 10), choose.randint(1, 30)), 1.0)
        engine.step()
    served = backlog.service.tokens
    assert served["three"] / served["one"] == pytest.approx(3.0, rel=0.05)


def test_a_tenant_that_comes_back_shares_from_then_on_and_is_owed_nothing() -> None:
    runner = StubRunner(num_blocks=24)
    engine = make_engine(runner, max_num_seqs=2, max_waiting=20)
    backlog = Backlog(engine, runner)
    served = backlog.service.tokens
    backlog.add("idle", prompt=3, max_tokens=2)
    while served["busy"] < 3000:
        backlog.top_up("busy", lambda: (8, 8))
        engine.step()
    before = served.copy()
    while served["busy"] - before["busy"] < 2000:
        backlog.top_up("busy", lambda: (8, 8))
        backlog.top_up("idle", lambda: (8, 8))
        engine.step()
    since = served - before
    assert since["idle"] == pytest.approx(since["busy"], abs=2 * (8 + 2 * 8))


def test_a_single_tenant_is_served_in_order_of_arrival() -> None:
    runner = StubRunner(num_blocks=24)
    engine = make_engine(runner, max_num_seqs=3, max_waiting=100, max_bypass=0)
    backlog = Backlog(engine, runner)
    choose = random.Random(1)
    for _ in range(60):
        backlog.add("one", prompt=choose.randint(1, 30), max_tokens=choose.randint(1, 30))
    drain(engine)
    serials = [int(request_id.partition(":")[2]) for request_id in backlog.service.order]
    assert serials == sorted(serials)


def charged(engine: Engine, *requests: EngineRequest) -> float:
    """What running all of them to their ends adds to their tenant's counter."""
    engine.add(make_request("keeps the others' account open", tenant="t", prompt=1))
    (sequence,) = engine._scheduler.waiting
    account = sequence.account
    for request in requests:
        engine.add(request)
    drain(engine)
    return account.counter - (1 * INPUT_COST + 6 * OUTPUT_COST)


def test_charges_a_prompt_token_once_and_an_output_twice_that_over_the_weight() -> None:
    engine = make_engine(StubRunner())
    request = make_request("a", prompt=9, max_tokens=5, tenant="t", weight=2.0)
    assert charged(engine, request) == (9 + 2 * 5) / 2


def test_what_the_prefix_cache_had_is_free() -> None:
    engine = make_engine(StubRunner(block_size=4))
    engine.add(make_request("first", prompt=20, max_tokens=1))
    drain(engine)
    request = make_request("again", prompt=20, max_tokens=1, tenant="t")
    assert charged(engine, request) == (20 - 16) + 2


def test_recomputing_after_a_preemption_is_not_charged_again() -> None:
    """E-PREEMPT: without a cache, so that all of it is computed again."""
    engine = make_engine(
        StubRunner(num_blocks=8, block_size=4), prefix_caching=False, max_num_batched_tokens=6
    )
    let_expect_short_outputs(engine)
    requests = [make_request(name, prompt=10, max_tokens=16, tenant="t") for name in "abc"]
    assert charged(engine, *requests) == 3 * (10 + 2 * 16)
    assert engine.stats().num_preemptions > 0


def test_what_was_not_computed_in_the_end_is_given_back() -> None:
    """Two chunks of 16 tokens run of a prompt of 100."""
    runner = StubRunner(vocab_size=200)
    engine = make_engine(runner, max_num_batched_tokens=16)
    engine.add(make_request("a", prompt=100, tenant="t"))
    (sequence,) = engine._scheduler.waiting
    engine.step()
    assert sequence.account.counter == 100, "promised, so that the next is chosen knowing it"
    engine.step()
    engine.abort("a")
    assert sequence.account.counter == 32


def test_a_failing_step_charges_only_what_was_computed_before_it() -> None:
    runner = StubRunner(vocab_size=200)
    engine = make_engine(runner, max_num_batched_tokens=16)

    def explode(batch: StepBatch) -> None:
        raise RuntimeError("injected")

    engine.add(make_request("a", prompt=100, tenant="t"))
    (sequence,) = engine._scheduler.waiting
    engine.step()
    runner.on_execute = explode
    engine.step()
    assert sequence.account.counter == 16


def test_remembers_no_tenant_when_idle() -> None:
    engine = make_engine(StubRunner(), max_waiting=100)
    for index in range(50):
        engine.add(make_request(str(index), tenant=f"tenant {index}"))
    drain(engine)
    assert len(engine._scheduler._shares) == 0
