from __future__ import annotations

import itertools
import math
import random

import pytest

from backends.beam_search import Beam, BeamSearch
from backends.types import BeamParams
from native_engine.types import FinishReason, SampledToken

VOCAB_SIZE = 4
EOS = 0


def candidates(tokens: tuple[int, ...], seed: int) -> list[SampledToken]:
    """The next tokens of an imagined model, likeliest first."""
    weights = [random.Random(f"{seed} {tokens} {t}").random() ** 3 for t in range(VOCAB_SIZE)]
    ranked = sorted(range(VOCAB_SIZE), key=lambda t: -weights[t])
    return [SampledToken(token_id=t, logprob=math.log(weights[t] / sum(weights))) for t in ranked]


def ids(beam: Beam) -> tuple[int, ...]:
    return tuple(token.token_id for token in beam.tokens)


def run(search: BeamSearch, seed: int) -> int:
    """Until it is over; how many steps that took."""
    for steps in itertools.count():
        if not search.live:
            return steps
        search.advance([candidates(ids(b), seed)[: search.num_candidates] for b in search.live])
    raise AssertionError


def every_answer(seed: int, max_tokens: int) -> dict[tuple[int, ...], float]:
    """All that can be said, with its log-probability."""
    found: dict[tuple[int, ...], float] = {}
    open_: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(max_tokens):
        open_ = {
            (*tokens, t.token_id): logprob + (t.logprob or 0.0)
            for tokens, logprob in open_.items()
            for t in candidates(tokens, seed)
        }
        found |= {tokens: one for tokens, one in open_.items() if tokens[-1] == EOS}
        open_ = {tokens: one for tokens, one in open_.items() if tokens[-1] != EOS}
    return found | open_


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 1.0, 2.0])
def test_a_beam_wide_enough_finds_the_best_of_all_answers(seed: int, length_penalty: float) -> None:
    params = BeamParams(width=VOCAB_SIZE**4, length_penalty=length_penalty)
    search = BeamSearch(params, max_tokens=4, eos_token_ids=[EOS])
    run(search, seed)
    scored = {
        tokens: logprob / len(tokens) ** length_penalty
        for tokens, logprob in every_answer(seed, 4).items()
    }
    best = sorted(scored, key=lambda tokens: -scored[tokens])[:5]
    assert [ids(beam) for beam in search.best(5)] == best
    for beam in search.best(5):
        assert beam.reason is (FinishReason.EOS if ids(beam)[-1] == EOS else FinishReason.LENGTH)


@pytest.mark.parametrize("seed", range(20))
def test_a_beam_of_one_takes_the_likeliest_token_each_time(seed: int) -> None:
    search = BeamSearch(BeamParams(width=1), max_tokens=6)
    assert run(search, seed) == 6
    greedy: tuple[int, ...] = ()
    while len(greedy) < 6:
        greedy = (*greedy, candidates(greedy, seed)[0].token_id)
    assert [ids(beam) for beam in search.best(1)] == [greedy]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_parent_may_be_gone_on_with_twice(seed: int) -> None:
    """E-BEAM: no answer comes twice, and each is one that can be said, with its own score."""
    search = BeamSearch(BeamParams(width=3), max_tokens=5, eos_token_ids=[EOS])
    run(search, seed)
    answers = every_answer(seed, 5)
    best = search.best(3)
    assert len({ids(beam) for beam in best}) == len(best) == 3
    for beam in best:
        assert beam.logprob == pytest.approx(answers[ids(beam)])


def test_nothing_ends_within_its_first_min_tokens() -> None:
    for seed in range(20):
        params = BeamParams(width=3, length_penalty=0.0)
        search = BeamSearch(params, max_tokens=6, min_tokens=4, eos_token_ids=[EOS])
        run(search, seed)
        assert all(EOS not in ids(beam)[:4] for beam in search.best(3))


def test_a_client_s_stop_token_ends_an_answer_for_its_own_reason() -> None:
    reasons = set[FinishReason | None]()
    for seed in range(10):
        search = BeamSearch(
            BeamParams(width=2), max_tokens=8, eos_token_ids=[EOS], stop_token_ids=[1, EOS]
        )
        run(search, seed)
        for beam in search.best(2):
            expected = {EOS: FinishReason.EOS, 1: FinishReason.STOP}
            assert beam.reason is expected.get(ids(beam)[-1], FinishReason.LENGTH)
            reasons.add(beam.reason)
    assert {FinishReason.EOS, FinishReason.STOP} <= reasons


def test_what_is_cut_off_has_no_reason() -> None:
    search = BeamSearch(BeamParams(width=2), max_tokens=9)
    search.advance([candidates((), 1)])
    assert [beam.reason for beam in search.best(2)] == [None, None]
