"""A real model answers with the same bits whether its tokens were guessed ahead or not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.dispatch import forced
from native_engine.config import EngineConfig, Speculation
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import (
    EngineRequest,
    LogitRules,
    SampledToken,
    SamplingParams,
    ScheduledSequence,
    StepBatch,
)
from tests.native_engine.checkpoints import tiny_llama, write_folder
from tests.native_engine.peeking import preempt, running

VOCAB_SIZE = 97
RULES = LogitRules(
    repetition_penalty=1.05, frequency_penalty=0.1, bad_words=((3, 4), (5,)), min_tokens=30
)
FEW = LogitRules(allowed_token_ids=(10, 11, 12), presence_penalty=0.01)  # guesses: right or wrong


def runner_for(folder: Path, threads: int = 1) -> ModelRunner:
    model = write_folder(tiny_llama(seed=6), folder)
    return build_runner(EngineConfig(model=model, kv_cache_bytes=1 << 22, cpu_threads=threads))


def requests(temperature: float) -> list[EngineRequest]:
    """Prompts that repeat themselves; a small random model's greedy answer does so, too."""
    choose = random.Random(3)
    stems = [choose.choices(range(VOCAB_SIZE), k=length) for length in (3, 7, 12, 15, 20)]
    return [
        EngineRequest(
            request_id=str(index),
            prompt_token_ids=tuple(stem * 3),
            sampling=SamplingParams(
                max_tokens=60,
                temperature=temperature,
                seed=index,
                eos_token_ids=(1, 2, 8),
                num_logprobs=VOCAB_SIZE if index % 2 else 0,
                rules=(None, RULES, RULES, FEW, FEW)[index],
            ),
        )
        for index, stem in enumerate(stems)
    ]


def answers(
    runner: ModelRunner,
    asked: Sequence[EngineRequest],
    speculation: Speculation,
    preempt_at: tuple[int, ...] = (),
) -> tuple[dict[str, list[SampledToken]], Engine]:
    engine = Engine(
        runner,
        EngineConfig(
            model=Path("m"),
            max_num_seqs=8,
            max_num_batched_tokens=40,
            max_waiting=8,
            speculation=speculation,
        ),
        clock=lambda: 0.0,
    )
    given: dict[str, list[SampledToken]] = {request.request_id: [] for request in asked}
    for request in asked:
        engine.add(request)
    num_steps = 0
    while engine.has_work:
        if num_steps in preempt_at:
            for sequence in running(engine):
                preempt(engine, sequence)
        for output in engine.step():
            assert output.token is not None
            given[output.request_id].append(output.token)
        engine.check_invariants()
        num_steps += 1
    return given, engine


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_and_logprobs_are_those_of_plain_decoding(
    tmp_path: Path, threads: int, temperature: float
) -> None:
    """With and without rules, alone and among neighbours."""
    runner = runner_for(tmp_path, threads)
    asked = requests(temperature)
    together, engine = answers(runner, asked, "prompt_lookup")
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens
    assert together == answers(runner, asked, "off")[0]
    for request in asked:
        alone, _ = answers(runner, [request], "prompt_lookup")
        assert alone[request.request_id] == together[request.request_id]


def test_a_preemption_changes_nothing(tmp_path: Path) -> None:
    runner = runner_for(tmp_path)
    asked = requests(0.0)
    guessed, engine = answers(runner, asked, "prompt_lookup", preempt_at=(12, 25))
    assert engine.stats().num_preemptions > len(asked)
    assert engine.stats().num_accepted_tokens > 0
    assert guessed == answers(runner, asked, "off")[0]


def test_forked_choices_change_nothing(tmp_path: Path) -> None:
    """Parent and children guess in the same steps, behind a prompt computed once."""
    runner = runner_for(tmp_path)
    parent = requests(1.0)[3]
    choices = [
        replace(parent, request_id=str(index), sampling=replace(parent.sampling, seed=index))
        for index in range(4)
    ]
    family = [choices[0], *(replace(one, fork_of="0") for one in choices[1:])]
    guessed, engine = answers(runner, family, "prompt_lookup")
    assert engine.stats().prompt_tokens_total == len(parent.prompt_token_ids)
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens
    assert guessed == answers(runner, choices, "off")[0]


def test_where_there_is_no_compiler_it_is_the_same(tmp_path: Path) -> None:
    """All in torch's operators, rows padded as `batch_invariance` found necessary."""
    with forced("torch"):
        runner = runner_for(tmp_path)
        assert runner.deterministic
        guessed, engine = answers(runner, requests(0.0), "prompt_lookup")
        assert engine.stats().num_accepted_tokens > 0
        assert guessed == answers(runner, requests(0.0), "off")[0]


@pytest.mark.parametrize("wrong_from", [1, 2, 5, 7])
def test_drafts_are_mapped_through_the_block_table(tmp_path: Path, wrong_from: int) -> None:
    """TGI #2711: slots in blocks out of order, drafts right up to one of them: each token drawn
    while they are is that of plain decoding, and so is the one drawn over the slots of those
    rejected.
    """
    runner = runner_for(tmp_path)
    table = [9, 2, 30, 4, 17]
    sampling = SamplingParams(max_tokens=1, temperature=1.0, seed=5, num_logprobs=VOCAB_SIZE)
    prompt = [(7 * i + 3) % VOCAB_SIZE for i in range(27)]

    def drawn(token_ids: list[int], start: int, num_drafts: int = 0) -> tuple[SampledToken, ...]:
        share = ScheduledSequence(
            request_id="a",
            token_ids=token_ids,
            start=start,
            block_table=table,
            sampling=sampling,
            sample=True,
            num_drafts=num_drafts,
        )
        return runner.execute(StepBatch(sequences=(share,)))[0].tokens

    plain = [*drawn(prompt, 0)]
    while len(plain) < 10:
        plain += drawn([plain[-1].token_id], len(prompt) + len(plain) - 1)
    drafts = [token.token_id for token in plain[1:8]]
    drafts[wrong_from:] = [(one + 1) % VOCAB_SIZE for one in drafts[wrong_from:]]
    tokens = drawn([plain[0].token_id, *drafts], len(prompt), num_drafts=7)
    assert len(tokens) == 8
    assert list(tokens[: wrong_from + 1]) == plain[1 : wrong_from + 2]
    again = drawn([plain[wrong_from + 1].token_id], len(prompt) + wrong_from + 1)
    assert list(again) == [plain[wrong_from + 2]]
