from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from native_engine import sampler
from native_engine.noise import uniform
from native_engine.sampler import NonFiniteLogits, SamplingRow, sample
from native_engine.types import LogitRules, SamplingParams, TokenHistory

RANDOM = SamplingParams(max_tokens=1)
GREEDY = replace(RANDOM, temperature=0.0)


def random_logits(num_rows: int, vocab_size: int, *, seed: int = 0, spread: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


def draws(logits: Tensor, params: SamplingParams, num_draws: int) -> list[int]:
    """Many draws from one row of logits, with the noise of positions 0, 1, ..."""
    rows = [SamplingRow(params, uniform(params.seed, p)) for p in range(num_draws)]
    tokens = sample(logits.expand(num_draws, -1), rows)
    return [token.token_id for token in tokens]


def kept_ids(logits: Tensor, params: SamplingParams) -> set[int]:
    """The filters, spelled out in Python over one row."""
    probabilities = torch.softmax(logits.float() / params.temperature, dim=-1)
    kept = dict(enumerate(probabilities.tolist()))
    floor = float(probabilities.max() * params.min_p)
    kept = {token_id: p for token_id, p in kept.items() if p >= floor}
    if params.top_k:
        floor = sorted(kept.values(), reverse=True)[: params.top_k][-1]
        kept = {token_id: p for token_id, p in kept.items() if p >= floor}
    if params.top_p < 1.0:
        total = sum(kept.values())
        mass = 0.0
        for p in sorted(kept.values(), reverse=True):
            mass += p
            if mass >= params.top_p * total:
                kept = {token_id: q for token_id, q in kept.items() if q >= p}
                break
    return set(kept)


def test_greedy_takes_the_likeliest_and_of_equals_the_lowest_id() -> None:
    logits = random_logits(3, 50_000)
    logits[0, [70, 7, 40_000]] = 100.0
    logits[1, [49_999, 25_000]] = 100.0
    tokens = sample(logits, [SamplingRow(GREEDY, 0.5)] * 3)
    assert [token.token_id for token in tokens] == [7, 25_000, int(logits[2].argmax())]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy_and_leave_the_others_alone(temperature: float) -> None:
    """E-TEMP-TINY."""
    logits = random_logits(3, 1000, spread=30.0)
    tiny = replace(RANDOM, temperature=temperature, top_k=50, top_p=0.9, min_p=0.01)
    rows = [SamplingRow(RANDOM, 0.7), SamplingRow(tiny, 0.999), SamplingRow(GREEDY, 0.1)]
    tokens = sample(logits, rows)
    assert tokens[1].token_id == int(logits[1].argmax())
    assert tokens[2].token_id == int(logits[2].argmax())
    assert tokens[0] == sample(logits[:1], rows[:1])[0]


@pytest.mark.parametrize(
    "params",
    [
        RANDOM,
        replace(RANDOM, temperature=0.5, seed=11),
        replace(RANDOM, temperature=2.0, top_k=5, seed=12),
        replace(RANDOM, top_p=0.8, seed=13),
        replace(RANDOM, min_p=0.1, seed=14),
        replace(RANDOM, temperature=1.5, top_k=12, top_p=0.9, min_p=0.02, seed=15),
    ],
)
def test_draws_follow_the_filtered_distribution(params: SamplingParams) -> None:
    num_draws = 20_000
    logits = random_logits(1, 20, seed=3, spread=1.5)
    kept = sorted(kept_ids(logits[0], params))
    weights = torch.softmax(logits[0, kept].double() / params.temperature, dim=-1).tolist()
    drawn = draws(logits, params, num_draws)
    assert set(drawn) <= set(kept)
    chi_square = sum(
        (drawn.count(token_id) - num_draws * weight) ** 2 / (num_draws * weight)
        for token_id, weight in zip(kept, weights, strict=True)
    )
    freedom = len(kept) - 1
    assert chi_square < freedom + 3.1 * math.sqrt(2 * freedom) + 6  # beyond the 0.1 % point


def test_filters_keep_exactly_what_a_plain_implementation_keeps() -> None:
    """Over vocabularies on both sides of the number of candidates, flat and peaked rows."""
    choose = random.Random(0)
    for case in range(120):
        vocab_size = choose.choice([3, 40, 256, 257, 900])
        params = replace(
            RANDOM,
            temperature=choose.choice([0.3, 1.0, 5.0]),
            top_k=choose.choice([0, 0, 1, 2, 40, 300, 5000]),
            top_p=choose.choice([1.0, 1e-6, 0.3, 0.9, 0.999, 0.999999]),
            min_p=choose.choice([0.0, 0.0, 0.001, 0.3, 1.0]),
        )
        logits = random_logits(1, vocab_size, seed=case, spread=choose.choice([0.1, 1.0, 5.0]))
        probabilities = torch.softmax(logits / params.temperature, dim=-1)
        floor = sampler._floors(probabilities, [params])
        kept = (probabilities[0] >= floor).nonzero().flatten().tolist()
        assert set(kept) == kept_ids(logits[0], params), params


def test_tokens_of_equal_probability_stay_or_go_together() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -1.0]])
    for params in (replace(RANDOM, top_k=2), replace(RANDOM, top_p=0.3)):
        assert set(draws(logits, params, 200)) == {1, 2, 3}
    assert set(draws(logits, replace(RANDOM, top_k=1), 200)) == {1}


def test_a_row_draws_the_same_token_in_any_batch_and_any_place() -> None:
    """E-SEED: row lengths that fill no vector registers, rows that need the full sort, logprobs."""
    choose = random.Random(1)
    logits = random_logits(24, 5003, seed=5, spread=0.5)
    rows = [
        SamplingRow(
            replace(
                RANDOM,
                temperature=choose.choice([0.0, 0.7, 1.0, 3.0]),
                top_k=choose.choice([0, 50, 1000]),
                top_p=choose.choice([1.0, 0.5, 0.95]),
                min_p=choose.choice([0.0, 0.01]),
                num_logprobs=choose.choice([None, 0, 5, 20]),
            ),
            uniform(3, index),
        )
        for index in range(24)
    ]
    alone = [sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    for _ in range(5):
        order = choose.sample(range(24), choose.randint(2, 24))
        together = sample(logits[order], [rows[index] for index in order])
        assert together == [alone[index] for index in order]


def test_the_cumulative_distribution_has_the_same_bits_in_any_batch() -> None:
    """Stronger than equal tokens: a difference of one bit would seldom show in a draw."""
    logits = random_logits(9, 5003)
    whole = torch.softmax(logits / 0.7, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    for index in range(9):
        alone = torch.softmax(logits[index : index + 1].clone() / 0.7, dim=-1)
        assert torch.equal(alone.cumsum(dim=-1, dtype=torch.float64)[0], whole[index])


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=40),
    temperature=st.floats(0.3, 3.0),
    top_p=st.sampled_from([0.5, 0.9, 1.0]),
    typical_p=st.floats(0.01, 0.99),
)
def test_typical_p_keeps_what_a_plain_implementation_keeps(
    logits: list[float], temperature: float, top_p: float, typical_p: float
) -> None:
    """Of what top_p left; a token so near the edge that rounding decides may go either way."""
    params = replace(RANDOM, temperature=temperature, top_p=top_p)
    left = sorted(kept_ids(torch.tensor(logits), params))
    weights = [math.exp((logits[one] - max(logits)) / temperature) for one in left]
    shares = [weight / sum(weights) for weight in weights]
    entropy = -sum(share * math.log(share) for share in shares)
    ranked = sorted((abs(-math.log(share) - entropy), share) for share in shares)
    mass = [sum(share for _, share in ranked[: end + 1]) for end in range(len(ranked))]
    edge = next((ranked[i][0] for i, m in enumerate(mass) if m >= typical_p), ranked[-1][0])
    probabilities = torch.softmax(torch.tensor(logits) / temperature, dim=-1)
    probabilities[[one for one in range(len(logits)) if one not in left]] = 0.0
    sampler._keep_typical(probabilities, typical_p)
    kept = set(probabilities.nonzero().flatten().tolist())
    is_clear = min((abs(m - typical_p) for m in mass), default=1.0) > 1e-5
    assert kept
    assert kept <= set(left)
    for one, share in zip(left, shares, strict=True):
        from_edge = abs(-math.log(share) - entropy) - edge
        if is_clear and abs(from_edge) > 1e-4:
            assert (one in kept) == (from_edge < 0)


def test_typical_p_may_drop_the_likeliest_token() -> None:
    logits = torch.tensor([[math.log(p) for p in (0.6, 0.1, 0.1, 0.1, 0.1)]])
    assert set(draws(logits, replace(RANDOM, typical_p=0.3), 300)) == {0}
    logits = torch.tensor([[math.log(p) for p in (0.3, *[0.07] * 10)]])
    assert set(draws(logits, replace(RANDOM, typical_p=0.5), 300)) == set(range(1, 11))


RULES = LogitRules(
    allowed_token_ids=tuple(range(0, 5000, 3)),
    bad_words=((3, 6), (9,)),
    min_tokens=30,
    logit_bias=((12, 5.0), (15, -100.0)),
    repetition_penalty=1.3,
    frequency_penalty=0.5,
    presence_penalty=-0.5,
)
HISTORY = TokenHistory(token_ids=[1, 12, 12, 3, 18, 3], num_prompt_tokens=2)


def test_rules_come_before_everything_and_leave_logprobs_raw() -> None:
    """E-PENALTY-SCOPE, and logprobs of the model's own distribution."""
    logits = torch.tensor([[5.0, 4.0, 3.0, 0.0]])
    rules = LogitRules(logit_bias=((3, 100.0),), bad_words=((0,),))
    history = TokenHistory(token_ids=[1], num_prompt_tokens=1)
    params = replace(GREEDY, rules=rules, num_logprobs=2)
    for asked in (params, replace(params, temperature=1.0, top_k=2)):
        (token,) = sample(logits, [SamplingRow(asked, 0.999, history)])
        assert token.token_id == 3
        assert token.logprob == pytest.approx(float(torch.log_softmax(logits[0], dim=-1)[3]))
        assert [token_id for token_id, _ in token.top_logprobs] == [0, 1]


def test_rows_with_rules_and_typical_p_are_the_same_in_any_batch_and_leave_others_alone() -> None:
    """E-SEED, bit for bit: all the log-probabilities, and the token of every noise."""
    choose = random.Random(2)
    logits = random_logits(16, 5003, seed=6, spread=1.0)
    rows = [
        SamplingRow(
            replace(
                RANDOM,
                temperature=choose.choice([0.0, 0.7, 3.0]),
                top_p=choose.choice([1.0, 0.9]),
                typical_p=choose.choice([1.0, 0.5, 0.95]),
                num_logprobs=choose.choice([None, 3]),
                stop_token_ids=(21, 24),
                rules=RULES if index % 2 else None,
            ),
            uniform(4, index),
            HISTORY if index % 2 else None,
        )
        for index in range(16)
    ]
    alone = [sample(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    for _ in range(5):
        order = choose.sample(range(16), choose.randint(2, 16))
        assert sample(logits[order], [rows[index] for index in order]) == [
            alone[index] for index in order
        ]


def test_draws_follow_the_distribution_that_rules_leave() -> None:
    """All rules at once, over the same chi-square bound as the plain filters."""
    num_draws = 20_000
    logits = random_logits(1, 30, seed=8, spread=1.0)
    rules = replace(RULES, allowed_token_ids=(0, 3, 9, 12, 15, 18, 21, 27))
    params = replace(RANDOM, temperature=1.5, stop_token_ids=(21,), rules=rules)
    rows = [SamplingRow(params, uniform(5, p), HISTORY) for p in range(num_draws)]
    drawn = [token.token_id for token in sample(logits.expand(num_draws, -1), rows)]
    raw: list[float] = logits[0].double().tolist()

    def penalised(token_id: int, *, bias: float = 0.0, seen: bool = False, count: int = 0) -> float:
        value = raw[token_id] + bias
        if seen:
            value = value / 1.3 if value > 0 else value * 1.3
        return (value - 0.5 * count + 0.5 * (count > 0)) / 1.5

    left = {
        0: penalised(0),
        3: penalised(3, seen=True, count=2),
        12: penalised(12, bias=5.0, seen=True, count=1),
        18: penalised(18, seen=True, count=1),
        27: penalised(27),
    }
    total = sum(math.exp(value) for value in left.values())
    assert set(drawn) <= {*left, 15}
    chi_square = sum(
        (drawn.count(token_id) - num_draws * math.exp(value) / total) ** 2
        / (num_draws * math.exp(value) / total)
        for token_id, value in left.items()
    )
    freedom = len(left) - 1
    assert chi_square < freedom + 3.1 * math.sqrt(2 * freedom) + 6


def test_noise_at_both_ends_draws_only_what_is_kept() -> None:
    logits = torch.tensor([[-1e9, 1.0, 2.0, 0.5, -1e9]])
    params = replace(RANDOM, top_k=2)
    tokens = sample(
        logits.expand(2, -1), [SamplingRow(params, 0.0), SamplingRow(params, 1 - 2.0**-52)]
    )
    assert [token.token_id for token in tokens] == [1, 2]


def test_logprobs_are_raw_whatever_the_temperature_and_filters() -> None:
    logits = random_logits(1, 300)
    expected = torch.log_softmax(logits[0], dim=-1)
    for params in (GREEDY, replace(RANDOM, temperature=5.0, top_k=3), replace(RANDOM, min_p=0.2)):
        (token,) = sample(logits, [SamplingRow(replace(params, num_logprobs=4), 0.3)])
        assert token.logprob == pytest.approx(float(expected[token.token_id]))
        ids = [token_id for token_id, _ in token.top_logprobs]
        assert ids == expected.topk(4).indices.tolist()
        assert [value for _, value in token.top_logprobs] == expected[ids].tolist()


def test_logprobs_come_only_where_asked_for() -> None:
    logits = random_logits(3, 50)
    asked = [None, 0, 60]
    tokens = sample(
        logits, [SamplingRow(replace(GREEDY, num_logprobs=number), 0.0) for number in asked]
    )
    assert [token.logprob is None for token in tokens] == [True, False, False]
    assert [len(token.top_logprobs) for token in tokens] == [0, 0, 50]


def test_equal_logprobs_are_listed_by_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0, 2.0]])
    (token,) = sample(logits, [SamplingRow(replace(GREEDY, num_logprobs=5), 0.0)])
    assert [token_id for token_id, _ in token.top_logprobs] == [1, 3, 4, 2, 5]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_refuses_logits_that_are_no_numbers_naming_the_rows(value: float) -> None:
    logits = random_logits(4, 100)
    logits[1, 50] = value
    logits[3] = -math.inf
    for params in (GREEDY, RANDOM):
        with pytest.raises(NonFiniteLogits, match="row 1, 3") as raised:
            sample(logits, [SamplingRow(params, 0.5)] * 4)
        assert raised.value.rows == (1, 3)


def test_samples_half_precision_logits_as_float32() -> None:
    logits = random_logits(2, 100).bfloat16()
    rows = [SamplingRow(replace(RANDOM, top_p=0.9, num_logprobs=2), 0.4)] * 2
    assert sample(logits, rows) == sample(logits.float(), rows)
