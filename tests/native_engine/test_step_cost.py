from __future__ import annotations

import random

import pytest

from native_engine.step_cost import StepCost

DECODES_S, PER_TOKEN_S = 0.05, 0.003


def step_s(num_prefill_tokens: int) -> float:
    """With 8 decodes."""
    return DECODES_S + PER_TOKEN_S * num_prefill_tokens


def observing(*sizes: int, noise: float = 0.0) -> StepCost:
    """Steps with 8 decodes and so many tokens of prompts."""
    cost, choose = StepCost(), random.Random(0)
    for num_tokens in sizes:
        cost.observe(8, num_tokens, step_s(num_tokens) * choose.uniform(1 - noise, 1 + noise))
    return cost


def test_gives_the_prompts_what_the_decodes_leave_of_the_time() -> None:
    cost = observing(0, 0, 0, 120)
    for num_tokens in (20, 64, 100):
        assert cost.prefill_tokens_within(step_s(num_tokens) + 1e-9, 8) == num_tokens
    assert cost.prefill_tokens_within(DECODES_S / 2, 8) == 0


def test_knows_no_limit_before_a_prompt_was_computed() -> None:
    assert observing().prefill_tokens_within(1.0, 8) is None
    assert observing(0, 0, 0).prefill_tokens_within(1.0, 8) is None


def test_knows_no_limit_if_prompts_cost_nothing() -> None:
    cost = observing(0)
    cost.observe(8, 100, DECODES_S)
    assert cost.prefill_tokens_within(1.0, 8) is None


def test_repeats_a_step_of_its_length_if_no_decodes_ran_alone() -> None:
    assert observing(100).prefill_tokens_within(step_s(100) + 1e-9, 8) == 100


def test_knows_how_long_few_and_many_decodes_take() -> None:
    cost = observing(0)
    cost.observe(30, 0, 0.2)
    cost.observe(1, 0, 0.01)
    cost.observe(1, 100, 0.01 + 100 * PER_TOKEN_S)
    for num_decodes, decodes_s in ((1, 0.01), (9, DECODES_S), (25, 0.2), (60, 0.2)):
        seconds = decodes_s + 50.5 * PER_TOKEN_S
        assert cost.prefill_tokens_within(seconds, num_decodes) == 50


def test_a_thousand_decodes_do_not_drown_a_few_prefills() -> None:
    cost = observing(*[64] * 3, *[0] * 1000, noise=0.1)
    assert cost.prefill_tokens_within(step_s(40), 8) == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize("factor", [20.0, 0.01])
def test_a_few_disturbed_steps_change_little(factor: float) -> None:
    cost = observing(*[0] * 5, *[64] * 5)
    for num_tokens in (0, 0, 64, 64):
        cost.observe(8, num_tokens, step_s(num_tokens) * factor)
    assert cost.prefill_tokens_within(step_s(40), 8) == pytest.approx(40, abs=1)


def test_follows_a_prompt_whose_tokens_cost_ever_more_within_three_steps() -> None:
    cost = observing(*[0] * 5, *[128] * 50)
    for _ in range(3):
        cost.observe(8, 64, DECODES_S + 64 * 1.5 * PER_TOKEN_S)
    seconds = DECODES_S + 40.5 * 1.5 * PER_TOKEN_S
    assert cost.prefill_tokens_within(seconds, 8) == 40


def test_a_slow_spell_is_forgotten_though_only_short_steps_ran_since() -> None:
    cost = observing(*[0] * 5)
    for _ in range(5):
        cost.observe(8, 128, 4 * step_s(128))
    for _ in range(3):
        cost.observe(8, 16, step_s(16))
    assert cost.prefill_tokens_within(step_s(40), 8) == pytest.approx(40, abs=1)


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    cost = StepCost()
    cost.observe(8, 1, 0.0)
    cost.observe(8, 1, -1.0)
    assert cost.tokens_per_s is None
    assert cost.prefill_tokens_within(1.0, 8) is None


def test_the_throughput_follows_the_last_steps() -> None:
    cost = StepCost()
    for _ in range(200):
        cost.observe(8, 2, 0.1)
    assert cost.tokens_per_s == pytest.approx(100)
    for _ in range(200):
        cost.observe(10, 0, 1.0)
    assert cost.tokens_per_s == pytest.approx(10, rel=0.2)


def test_drafts_that_failed_take_time_and_are_no_work_done() -> None:
    cost = StepCost()
    cost.observe(8, 0, 2.0, num_rejected_tokens=6)
    assert cost.tokens_per_s == 1.0
    cost.observe(8, 10, 3.0)
    assert cost.prefill_tokens_within(2.5, 8) == 5
