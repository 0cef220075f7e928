from __future__ import annotations

import random

import pytest

from native_engine.step_cost import StepCost

BASE_S, PER_TOKEN_S = 0.05, 0.003


def step_s(num_tokens: int) -> float:
    return BASE_S + PER_TOKEN_S * num_tokens


def observing(*sizes: int, noise: float = 0.0) -> StepCost:
    cost, choose = StepCost(), random.Random(0)
    for num_tokens in sizes:
        cost.observe(num_tokens, step_s(num_tokens) * choose.uniform(1 - noise, 1 + noise))
    return cost


def test_finds_the_line_that_steps_lie_on() -> None:
    cost = observing(1, 8, 8, 8, 128)
    for num_tokens in (20, 64, 100):
        assert cost.tokens_within(step_s(num_tokens) + 1e-9) == num_tokens
    assert cost.tokens_within(BASE_S / 2) == 0


def test_knows_nothing_from_steps_of_one_size() -> None:
    assert observing().tokens_within(1.0) is None
    assert observing(8, 8, 8).tokens_within(1.0) is None


def test_knows_nothing_if_larger_steps_were_faster() -> None:
    cost = StepCost()
    cost.observe(1, 1.0)
    cost.observe(100, 0.5)
    assert cost.tokens_within(1.0) is None


def test_a_thousand_decodes_do_not_drown_a_few_prefills() -> None:
    cost = observing(*[64] * 3, *[8] * 1000, noise=0.1)
    assert cost.tokens_within(step_s(40)) == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize("factor", [20.0, 0.01])
def test_a_few_disturbed_steps_change_little(factor: float) -> None:
    cost = observing(*[8] * 9, *[64] * 9)
    for num_tokens in (8, 8, 64, 64):
        cost.observe(num_tokens, step_s(num_tokens) * factor)
    assert cost.tokens_within(step_s(40)) == pytest.approx(40, abs=1)


def test_learns_that_the_machine_has_become_slower() -> None:
    cost = observing(*[8] * 50, *[64] * 50)
    for _ in range(9):
        cost.observe(8, 2 * step_s(8))
        cost.observe(64, 2 * step_s(64))
    assert cost.tokens_within(2 * step_s(40)) == pytest.approx(40, abs=1)


def test_large_steps_that_are_no_longer_true_yield_to_small_ones_that_are() -> None:
    """After a slow spell only capped steps run, so nothing corrects the large ones."""
    cost = StepCost()
    for _ in range(9):
        cost.observe(128, 4 * step_s(128))
        cost.observe(8, step_s(8))
        cost.observe(40, step_s(40))
    assert cost.tokens_within(step_s(40)) == pytest.approx(40, rel=0.25)


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    cost = StepCost()
    cost.observe(8, 0.0)
    cost.observe(8, -1.0)
    assert cost.tokens_per_s is None
    assert cost.tokens_within(1.0) is None


def test_the_throughput_follows_the_last_steps() -> None:
    cost = StepCost()
    for _ in range(200):
        cost.observe(10, 0.1)
    assert cost.tokens_per_s == pytest.approx(100)
    for _ in range(200):
        cost.observe(10, 1.0)
    assert cost.tokens_per_s == pytest.approx(10, rel=0.2)
