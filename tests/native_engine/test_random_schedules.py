"""A few random schedules of a tiny real model; `benchmarks.run_random_schedules` runs thousands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.types import EngineRequest, LogitRules, SampledToken, SamplingParams
from tests.native_engine.peeking import preempt, running
from tests.native_engine.random_schedules import MODELS, RandomSchedules, tiny_runner

SEEDED = SamplingParams(max_tokens=12, temperature=1.0, seed=123, num_logprobs=3)


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_of_a_random_schedule_is_what_it_is_alone(tmp_path: Path, model: str) -> None:
    """Promises 1 to 4 and 14; E-PREEMPT, E-SEED, E-BATCH-INVARIANCE, E-ABORT-LAST-STEP."""
    schedules = RandomSchedules(tiny_runner(model, tmp_path))
    for seed in range(40):
        schedules.run(seed)
    tally = schedules.tally
    assert tally.mismatches == []
    counts = (tally.aborts, tally.forced_preemptions, tally.cached_tokens, tally.scored_tokens)
    assert min(counts) > 0
    assert tally.preemptions > tally.forced_preemptions
    assert 0 < tally.accepted_tokens < tally.draft_tokens


class Lab:
    """One runner and many engines over it; each answer with all its log-probabilities."""

    def __init__(self, folder: Path) -> None:
        self._runner = tiny_runner("llama", folder)

    def engine(self) -> Engine:
        config = EngineConfig(model=Path("tiny"), max_num_seqs=8, max_num_batched_tokens=40)
        return Engine(self._runner, config, clock=lambda: 0.0)

    def answers(
        self, requests: list[EngineRequest], *, preempt_at: int | None = None
    ) -> tuple[dict[str, list[SampledToken]], int]:
        """Of all requests together, and the preemptions; all are preempted before that step."""
        engine = self.engine()
        answers: dict[str, list[SampledToken]] = {r.request_id: [] for r in requests}
        for request in requests:
            engine.add(request)
        step = 0
        while engine.has_work:
            if step == preempt_at:
                for sequence in running(engine):
                    preempt(engine, sequence)
            for output in engine.step():
                assert output.token is not None
                answers[output.request_id].append(output.token)
            step += 1
        return answers, engine.stats().num_preemptions


def request(request_id: str, length: int, sampling: SamplingParams) -> EngineRequest:
    prompt = tuple((7 * i + length) % 97 for i in range(length))
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


def test_a_seed_holds_beside_any_number_of_neighbours_without_one(tmp_path: Path) -> None:
    """E-SEED, vLLM #51226: seven random neighbours, each with a seed nobody chose."""
    lab = Lab(tmp_path)
    seeded = request("seeded", 21, SEEDED)
    alone, _ = lab.answers([seeded])
    for count in range(1, 8):
        neighbours = [
            request(str(i), 5 + 9 * i, replace(SEEDED, seed=1000 * count + i)) for i in range(count)
        ]
        beside, _ = lab.answers([*neighbours, seeded])
        assert beside["seeded"] == alone["seeded"]
        preempted, num_preemptions = lab.answers([*neighbours, seeded], preempt_at=count + 2)
        assert preempted == beside
        assert num_preemptions == count + 1


def test_a_preemption_at_any_step_changes_no_bit(tmp_path: Path) -> None:
    """E-PREEMPT: greedy, seeded and penalised; nobody is preempted for it a second time."""
    lab = Lab(tmp_path)
    rules = LogitRules(frequency_penalty=0.8, repetition_penalty=1.3, min_tokens=9)
    requests = [
        request("greedy", 30, replace(SEEDED, temperature=0.0)),
        request("seeded", 17, SEEDED),
        request("penalised", 25, replace(SEEDED, rules=rules, eos_token_ids=(1, 2, 3))),
    ]
    undisturbed, _ = lab.answers(requests)
    for step in range(1, 13):
        disturbed, num_preemptions = lab.answers(requests, preempt_at=step)
        assert disturbed == undisturbed
        assert num_preemptions <= len(requests)


def test_a_token_has_one_logprob_whatever_the_temperature(tmp_path: Path) -> None:
    """vLLM #9453: log-probabilities are the model's, before temperature and filters."""
    lab = Lab(tmp_path)
    cold, hot = (
        lab.answers([request("a", 11, replace(SEEDED, temperature=t, top_k=k, num_logprobs=97))])[0]
        for t, k in ((0.1, 5), (2.0, 0))
    )
    assert dict(cold["a"][0].top_logprobs) == dict(hot["a"][0].top_logprobs)
    for token in (*cold["a"], *hot["a"]):
        assert dict(token.top_logprobs)[token.token_id] == token.logprob
