"""Held against an implementation in plain Python floats, which knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from native_engine.logit_rules import apply_rules
from native_engine.types import LogitRules, SamplingParams, TokenHistory

VOCAB_SIZE = 12
PLAIN = SamplingParams(max_tokens=1)
TOKEN_IDS = st.integers(0, VOCAB_SIZE - 1)


def expected_row(
    logits: Sequence[float], params: SamplingParams, rules: LogitRules, history: TokenHistory
) -> list[float]:
    """The documented order, step by step, in float64; the largest is moved to 0."""
    prompt = list(history.token_ids[: history.num_prompt_tokens])
    outputs = list(history.token_ids[history.num_prompt_tokens :])
    allowed = set(rules.allowed_token_ids or range(len(logits)))
    banned = {
        word[-1] for word in rules.bad_words if [*outputs, word[-1]][-len(word) :] == list(word)
    }
    if len(outputs) < rules.min_tokens:
        banned.update(params.stop_token_ids)
        banned.update([] if params.ignore_eos else params.eos_token_ids)
    kept = allowed - banned or allowed
    bias = dict(rules.logit_bias)
    row = []
    for token_id, logit in enumerate(logits):
        value = logit if token_id in kept else -math.inf
        value += bias.get(token_id, 0.0)
        if token_id in prompt or token_id in outputs:
            factor = rules.repetition_penalty
            value = value / factor if value > 0 else value * factor
        value -= rules.frequency_penalty * outputs.count(token_id)
        value -= rules.presence_penalty * (token_id in outputs)
        row.append(value)
    return [value - max(row) for value in row]


def history_of(prompt: Sequence[int], outputs: Sequence[int] = ()) -> TokenHistory:
    return TokenHistory(token_ids=[*prompt, *outputs], num_prompt_tokens=len(prompt))


def applied(
    logits: Sequence[float],
    rules: LogitRules,
    history: TokenHistory,
    params: SamplingParams = PLAIN,
) -> list[float]:
    row: list[float] = apply_rules(torch.tensor(logits), params, rules, history).tolist()
    return row


def id_tuples(*, max_size: int, min_size: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(TOKEN_IDS, min_size=min_size, max_size=max_size).map(tuple)


RULES = st.builds(
    LogitRules,
    allowed_token_ids=id_tuples(max_size=6),
    bad_words=st.lists(id_tuples(min_size=1, max_size=3), max_size=6).map(tuple),
    min_tokens=st.integers(0, 8),
    logit_bias=st.dictionaries(TOKEN_IDS, st.floats(-100, 100, width=32), max_size=6).map(
        lambda bias: tuple(bias.items())
    ),
    repetition_penalty=st.floats(0.1, 10.0),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    eos_token_ids=id_tuples(max_size=2),
    stop_token_ids=id_tuples(max_size=2),
    ignore_eos=st.booleans(),
)
LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE)


@given(
    logits=LOGITS,
    rules=RULES,
    params=PARAMS,
    history=st.builds(history_of, id_tuples(min_size=1, max_size=8), id_tuples(max_size=8)),
)
def test_any_rules_over_any_row_do_what_the_plain_implementation_does(
    logits: list[float], rules: LogitRules, params: SamplingParams, history: TokenHistory
) -> None:
    found = applied(logits, rules, history, params)
    assert found == pytest.approx(expected_row(logits, params, rules, history), rel=1e-4, abs=1e-3)
    assert max(found) == 0.0


def test_repetition_sees_the_prompt_and_divides_or_multiplies() -> None:
    """E-PENALTY-SCOPE: positive logits shrink, negative ones grow in size; others stay."""
    row = applied([4.0, -4.0, 2.0, 5.0], LogitRules(repetition_penalty=2.0), history_of([0, 1, 1]))
    assert row == [2.0 - 5.0, -8.0 - 5.0, 2.0 - 5.0, 0.0]


@pytest.mark.parametrize(
    "rules", [LogitRules(frequency_penalty=2.0), LogitRules(presence_penalty=2.0)]
)
def test_frequency_and_presence_see_outputs_only(rules: LogitRules) -> None:
    """E-PENALTY-SCOPE."""
    logits = [3.0, 2.0, 1.0, 0.0]
    before = applied(logits, rules, history_of([0, 0, 1]))
    after = applied(logits, rules, history_of([0, 0, 1], [2, 2]))
    assert before == [0.0, -1.0, -2.0, -3.0]
    assert after == [0.0, -1.0, -2.0 - (4.0 if rules.frequency_penalty else 2.0), -3.0]


def test_min_tokens_masks_all_that_ends_and_nothing_after_the_last() -> None:
    """E-MIN-TOKENS: not off by one; every EOS id; stop ids too; the prompt does not count."""
    params = replace(PLAIN, eos_token_ids=(1, 2, 99_999), stop_token_ids=(3,))
    rules = LogitRules(min_tokens=4)
    logits = [0.0] * 5
    for num_outputs in range(6):
        row = applied(logits, rules, history_of([4] * 9, [0] * num_outputs), params)
        masked = [token_id for token_id, value in enumerate(row) if value == -math.inf]
        assert masked == ([1, 2, 3] if num_outputs < 4 else [])
    ignoring = applied(logits, rules, history_of([4]), replace(params, ignore_eos=True))
    assert [token_id for token_id, value in enumerate(ignoring) if value == -math.inf] == [3]


def test_a_bad_word_is_banned_at_its_last_token_only_where_its_prefix_was_generated() -> None:
    rules = LogitRules(bad_words=((1, 2, 3), (0,)))

    def banned(prompt: list[int], outputs: list[int]) -> list[int]:
        row = applied([0.0] * 5, rules, history_of(prompt, outputs))
        return [token_id for token_id, value in enumerate(row) if value == -math.inf]

    assert banned([4], [1, 2]) == [0, 3]
    assert banned([4], [2, 1]) == [0]
    assert banned([4, 1], [2]) == [0]
    assert banned([1, 2], []) == [0]


def test_bans_that_would_leave_nothing_are_void() -> None:
    rules = LogitRules(allowed_token_ids=(1, 2), bad_words=((2,),), min_tokens=5)
    params = replace(PLAIN, eos_token_ids=(1,))
    row = applied([0.0, 1.0, 2.0, 9.0], rules, history_of([0]), params)
    assert row == [-math.inf, -1.0, 0.0, -math.inf]


@pytest.mark.parametrize("penalty", [1e-45, 1e-38, 1e-3, 100.0])
def test_extreme_values_stay_numbers(penalty: float) -> None:
    """E-TEMP-TINY: largest biases of both signs, a penalty that overflows, logits of 0 and -inf."""
    rules = LogitRules(repetition_penalty=penalty, logit_bias=((0, 100.0), (1, -100.0)))
    logits = [30.0, -30.0, 0.0, -math.inf, 3.0]
    row = torch.tensor(applied(logits, rules, history_of([0, 1, 2, 3, 4])))
    assert not row.isnan().any()
    probabilities = torch.softmax(row / 1.01e-4, dim=-1)
    assert float(probabilities.sum()) == pytest.approx(1.0)


def test_does_not_touch_the_raw_logits() -> None:
    logits: Tensor = torch.arange(5.0)
    rules = LogitRules(logit_bias=((1, 5.0),), repetition_penalty=2.0, frequency_penalty=1.0)
    apply_rules(logits, PLAIN, rules, history_of([4], [3]))
    assert logits.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
