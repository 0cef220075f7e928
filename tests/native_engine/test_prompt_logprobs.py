"""Prompt log-probabilities of real models, held against transformers' and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.prompt_logprobs import SLICE_ROWS, score_prompts
from native_engine.sampler import NonFiniteLogits
from native_engine.types import (
    EngineRequest,
    PromptLogprob,
    SamplingParams,
    ScheduledSequence,
    StepBatch,
    TokenHistory,
)
from tests.native_engine.checkpoints import tiny_llama, write_folder
from tests.native_engine.harness import Transcript, drain
from tests.native_engine.reference import prompt_logits, transformers_model

SMOLLM2 = Path(".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf")
VOCAB_SIZE = 97
LENGTHS = (1, 2, 15, 17, 33, 70)  # the last is more than two slices
PROMPTS = [[(31 * i * i + 7 * n + 3) % VOCAB_SIZE for i in range(n)] for n in LENGTHS]
SCORED = SamplingParams(max_tokens=2, temperature=0.0, num_prompt_logprobs=VOCAB_SIZE)


def runner_for(model: LlamaForCausalLM, folder: Path, **options: Any) -> ModelRunner:
    settings = {"kv_cache_bytes": 1 << 22, "cpu_threads": 1, **options}
    return build_runner(EngineConfig(model=write_folder(model, folder), **settings))


def make_engine(runner: ModelRunner, budget: int) -> Engine:
    config = EngineConfig(
        model=Path("m"), max_num_seqs=4, max_num_batched_tokens=budget, max_waiting=16
    )
    return Engine(runner, config, clock=lambda: 0.0)


def scores(
    runner: ModelRunner,
    *prompts: list[int],
    budget: int = 1000,
    sampling: SamplingParams = SCORED,
    prepare: Callable[[Engine], None] = lambda engine: None,
) -> list[tuple[PromptLogprob, ...]]:
    """Of prompts that run together in a fresh engine."""
    engine = make_engine(runner, budget)
    prepare(engine)
    for index, prompt in enumerate(prompts):
        engine.add(
            EngineRequest(request_id=str(index), prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    found = drain(engine).prompt_logprobs
    return [found[str(index)] for index in range(len(prompts))]


def check_against_transformers(
    theirs: torch.Tensor, prompt: list[int], ours: tuple[PromptLogprob, ...]
) -> None:
    """theirs: `[len(prompt), vocab_size]` log-probabilities."""
    assert [one.token_id for one in ours] == prompt[1:]
    for row, one in zip(theirs, ours, strict=False):
        assert one.logprob == pytest.approx(float(row[one.token_id]), abs=1e-4)
        better = int((row > one.logprob + 1e-4).sum())
        not_worse = int((row > one.logprob - 1e-4).sum())
        assert better < one.rank <= max(not_worse, better + 1)
        ids, values = zip(*one.top_logprobs, strict=True)
        assert values == pytest.approx(row[list(ids)].tolist(), abs=1e-4)
        assert list(values) == sorted(values, reverse=True)
        assert values == pytest.approx(row.topk(len(values)).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_are_transformers_s_and_equal_bits_however_they_are_computed(
    tmp_path: Path, threads: int
) -> None:
    """E-PREFIX-PROMPT-LOGPROBS: alone, in chunks, beside neighbours, and a second time."""
    model = tiny_llama(seed=11)
    runner = runner_for(model, tmp_path, cpu_threads=threads)
    assert runner.deterministic
    alone = [scores(runner, prompt)[0] for prompt in PROMPTS]
    for prompt, ours in zip(PROMPTS, alone, strict=True):
        theirs = torch.log_softmax(prompt_logits(model, prompt), dim=-1)
        check_against_transformers(theirs, prompt, ours)
    assert scores(runner, *PROMPTS) == alone
    assert scores(runner, *PROMPTS, budget=7) == alone

    def warm(engine: Engine) -> None:
        for index, prompt in enumerate(PROMPTS):
            request = EngineRequest(
                request_id=f"w{index}", prompt_token_ids=tuple(prompt), sampling=SCORED
            )
            engine.add(request)
        drain(engine)

    assert scores(runner, *PROMPTS, prepare=warm) == alone


def test_are_equal_bits_after_a_preemption(tmp_path: Path) -> None:
    """The victim loses half of a prompt that was computed in chunks."""
    runner = runner_for(tiny_llama(seed=12), tmp_path)
    (expected,) = scores(runner, PROMPTS[-1])
    engine = make_engine(runner, budget=20)
    for request_id, prompt in (("old", PROMPTS[2]), ("victim", PROMPTS[-1])):
        engine.add(
            EngineRequest(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=SCORED)
        )
    transcript = Transcript()
    transcript.record([output for _ in range(2) for output in engine.step()])
    engine.add(EngineRequest(request_id="new", prompt_token_ids=tuple(PROMPTS[4]), sampling=SCORED))
    (victim,) = engine._scheduler.running
    engine._scheduler._preempt(victim)
    assert drain(engine, transcript).prompt_logprobs["victim"] == expected


def test_no_sampling_parameter_changes_them(tmp_path: Path) -> None:
    """Log-probabilities are of the model's own distribution, not of what is drawn from."""
    runner = runner_for(tiny_llama(seed=13), tmp_path)
    plain = scores(runner, PROMPTS[3])
    hot = replace(SCORED, temperature=2.0, top_p=0.5, top_k=3, seed=9)
    assert scores(runner, PROMPTS[3], sampling=hot) == plain


def test_of_the_likeliest_as_many_come_as_were_asked_for(tmp_path: Path) -> None:
    runner = runner_for(tiny_llama(seed=14), tmp_path)
    (all_of_them,) = scores(runner, PROMPTS[3])
    for count in (0, 1, 5):
        (some,) = scores(runner, PROMPTS[3], sampling=replace(SCORED, num_prompt_logprobs=count))
        assert some == tuple(
            replace(one, top_logprobs=one.top_logprobs[:count]) for one in all_of_them
        )


def scheduled(prompt: list[int], start: int, stop: int, num_logprobs: int) -> ScheduledSequence:
    return ScheduledSequence(
        request_id="r",
        token_ids=prompt[start:stop],
        start=start,
        block_table=[],
        sampling=replace(SCORED, num_prompt_logprobs=num_logprobs),
        sample=False,
        history=TokenHistory(token_ids=prompt, num_prompt_tokens=len(prompt)),
    )


def test_no_more_rows_of_logits_exist_at_a_time_than_a_slice_has() -> None:
    """Two shares, of which the second begins at row 60; the last position has nothing behind it."""
    asked: list[list[int]] = []

    def logits_of(rows: list[int]) -> torch.Tensor:
        asked.append(rows)
        return torch.zeros(len(rows), 5)

    prompt = [2] * 100
    batch = StepBatch(sequences=(scheduled(prompt, 0, 60, 1), scheduled(prompt, 90, 100, 2)))
    first, second = score_prompts(batch, logits_of)
    assert [row for rows in asked for row in rows] == [*range(60), *range(60, 69)]
    assert max(map(len, asked)) == SLICE_ROWS
    assert [len(first), len(second)] == [60, 9]
    assert {len(one.top_logprobs) for one in second} == {2}
    assert {one.rank for one in first} == {1}  # of equals nobody is likelier


def test_equals_are_left_out_alike_whatever_a_neighbour_asks_for() -> None:
    """Twenty tokens are equally likely: which two of them are told depends on the row alone."""
    row = torch.zeros(50)
    row[20:40] = 1.0
    alone, *_ = score_prompts(
        StepBatch(sequences=(scheduled([1, 2], 0, 2, 2),)), lambda rows: row.repeat(len(rows), 1)
    )
    beside, *_ = score_prompts(
        StepBatch(sequences=(scheduled([1, 2], 0, 2, 2), scheduled([1, 2, 3], 0, 3, 20))),
        lambda rows: row.repeat(len(rows), 1),
    )
    assert beside == alone


def test_a_broken_row_is_named() -> None:
    logits = torch.zeros(3, 5)
    logits[1, 4] = float("nan")
    batch = StepBatch(sequences=(scheduled([1, 1, 1, 1], 0, 4, 0),))
    with pytest.raises(NonFiniteLogits) as caught:
        score_prompts(batch, lambda rows: logits)
    assert caught.value.rows == (1,)


@pytest.mark.weights
def test_smollm2_scores_a_prompt_as_transformers_does() -> None:
    runner = build_runner(EngineConfig(model=SMOLLM2, max_model_len=256, cpu_threads=1))
    prompt = [504, 3575, 282, 4649, 314, 7042, 30, 657, 314, 253, 2492, 2853, 281, 260, 905] * 3
    sampling = SamplingParams(max_tokens=0, temperature=0.0, num_prompt_logprobs=5)
    (ours,) = scores(runner, prompt, sampling=sampling)
    theirs = torch.log_softmax(prompt_logits(transformers_model(runner._model), prompt), dim=-1)
    check_against_transformers(theirs, prompt, ours)
    assert scores(runner, prompt, prompt[7:], budget=16, sampling=sampling)[0] == ours
