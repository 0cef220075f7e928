"""Beam search on a real model, held against transformers' own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from backends.beam_answer import BeamAnswer
from backends.errors import DeadlineExceeded
from backends.messages import Output
from backends.types import (
    BeamParams,
    Finished,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    Token,
    TokenPrompt,
)
from native_engine import types as engine
from native_engine.engine import Engine
from tests.backends.byte_tokenizer import byte_tokenizer
from tests.native_engine.checkpoints import tiny_llama
from tests.native_engine.test_model_runner import engine_for, random_prompts, runner_for

EOS = 7
PROMPTS = tuple(map(tuple, random_prompts(20, 9)))


def answer(
    *, width: int, n: int, length_penalty: float = 1.0, max_tokens: int = 12, num_prompts: int = 1
) -> BeamAnswer:
    request = GenerationRequest(
        request_id="r",
        model="m",
        prompts=tuple(TokenPrompt(token_ids=one) for one in PROMPTS[:num_prompts]),
        sampling=SamplingParams(logprobs=True),
        max_tokens=max_tokens,
        n=n,
        beams=BeamParams(width=width, length_penalty=length_penalty),
    )
    sequences = [
        engine.EngineRequest(
            request_id=f"r-{index}",
            prompt_token_ids=prompt,
            sampling=engine.SamplingParams(max_tokens=max_tokens, eos_token_ids=(EOS,)),
        )
        for index, prompt in enumerate(PROMPTS[:num_prompts])
    ]
    return BeamAnswer(request, sequences, byte_tokenizer())


class Rounds:
    """Runs them on an engine, and counts them."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        self._engine = engine

    async def run(self, sequences: Sequence[engine.EngineRequest]) -> dict[str, Output]:
        self.count += 1
        for sequence in sequences:
            self._engine.add(sequence)
        outputs: dict[str, Output] = {}
        while self._engine.has_work:
            outputs |= {o.request_id: Output.of(o, o.request_id) for o in self._engine.step()}
        return outputs


def found(made: BeamAnswer) -> list[list[int]]:
    """The token ids of each choice."""
    choices: dict[int, list[int]] = {}
    for event in made.events():
        if isinstance(event, Token):
            assert event.token_id is not None
            choices.setdefault(event.index, []).append(event.token_id)
    return list(choices.values())


def up_to_eos(padded: list[int]) -> list[int]:
    return padded[: padded.index(EOS) + 1] if EOS in padded else padded


@pytest.fixture(scope="module")
def small_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for(runner_for(tiny_llama(seed=21), tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.5, -1.0])
async def test_finds_what_transformers_finds(
    small_engine: Engine, width: int, length_penalty: float
) -> None:
    """E-BEAM: blocks of beams are not mixed when one parent is gone on with twice."""
    model = tiny_llama(seed=21)
    theirs = model.generate(
        torch.tensor([PROMPTS[0]]),
        num_beams=width,
        num_return_sequences=width,
        length_penalty=length_penalty,
        max_new_tokens=12,
        do_sample=False,
        early_stopping=False,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    expected = [up_to_eos(row[len(PROMPTS[0]) :].tolist()) for row in theirs]
    made = answer(width=width, n=width, length_penalty=length_penalty)
    await made.search(Rounds(small_engine).run, lambda: math.inf)
    assert found(made) == expected


async def test_several_prompts_are_searched_in_step(small_engine: Engine) -> None:
    together = answer(width=3, n=2, num_prompts=2)
    rounds = Rounds(small_engine)
    await together.search(rounds.run, lambda: math.inf)
    alone = answer(width=3, n=2)
    await alone.search(Rounds(small_engine).run, lambda: math.inf)
    assert found(together)[:2] == found(alone)
    assert rounds.count <= 12
    *_, finished = together.events()
    assert isinstance(finished, Finished)
    assert finished.usage.prompt_tokens == sum(map(len, PROMPTS))
    assert finished.usage.completion_tokens == sum(map(len, found(together)))


async def test_ends_in_time_with_the_best_so_far(small_engine: Engine) -> None:
    made = answer(width=3, n=2)
    rounds = Rounds(small_engine)
    await made.search(rounds.run, lambda: 4.0 - rounds.count)
    assert rounds.count == 4
    *_, finished = made.events()
    assert isinstance(finished, Finished)
    assert FinishReason.DEADLINE in finished.reasons
    with pytest.raises(DeadlineExceeded):
        await answer(width=3, n=2).search(rounds.run, lambda: 0.0)
