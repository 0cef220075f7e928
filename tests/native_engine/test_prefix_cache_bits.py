"""A real model answers with the same bits whether a prompt is computed or found in the cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import EngineRequest, SampledToken, SamplingParams
from tests.native_engine.checkpoints import tiny_llama, write_folder

SMOLLM2 = Path(".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def make_engine(runner: ModelRunner, *, prefix_caching: bool) -> Engine:
    return Engine(
        runner,
        EngineConfig(
            model=Path("m"),
            max_num_seqs=8,
            max_num_batched_tokens=40,
            max_waiting=8,
            prefix_caching=prefix_caching,
        ),
        clock=time.monotonic,
    )


class Answers:
    """Runs prompts together; keeps every token with its logprobs, and what was cached."""

    def __init__(self, engine: Engine, *, num_logprobs: int, num_tokens: int) -> None:
        self._engine = engine
        self._sampling = SamplingParams(
            max_tokens=num_tokens, temperature=1.0, seed=7, num_logprobs=num_logprobs
        )
        self.cached_tokens: list[int] = []

    def to(self, *prompts: Sequence[int]) -> list[list[SampledToken]]:
        answers: dict[str, list[SampledToken]] = {str(i): [] for i in range(len(prompts))}
        cached = dict.fromkeys(answers, 0)
        for request_id, prompt in zip(answers, prompts, strict=True):
            request = EngineRequest(
                request_id=request_id, prompt_token_ids=tuple(prompt), sampling=self._sampling
            )
            self._engine.add(request)
        while self._engine.has_work:
            for output in self._engine.step():
                assert output.token is not None
                answers[output.request_id].append(output.token)
                cached[output.request_id] += output.cached_tokens or 0
        self.cached_tokens = list(cached.values())
        return list(answers.values())


def check_warm_is_cold(
    runner: ModelRunner, *, num_logprobs: int, num_tokens: int, vocab_size: int
) -> None:
    assert runner.deterministic
    prompts = [[(7 * i + 3) % vocab_size for i in range(length)] for length in (16, 33, 70)]
    prompts.append([*prompts[2][:50], 1, 2, 3])
    numbers = {"num_logprobs": num_logprobs, "num_tokens": num_tokens}
    off = Answers(make_engine(runner, prefix_caching=False), **numbers)
    caching = Answers(make_engine(runner, prefix_caching=True), **numbers)
    expected = [off.to(prompt)[0] for prompt in prompts]
    (cold,) = caching.to(prompts[2])
    assert (cold, caching.cached_tokens) == (expected[2], [0])
    (warm,) = caching.to(prompts[2])
    assert (warm, caching.cached_tokens) == (expected[2], [64])
    assert caching.to(*prompts) == expected
    assert caching.cached_tokens == [0, 32, 64, 48]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_small_model_computes_the_same_bits_cold_and_warm(tmp_path: Path, threads: int) -> None:
    """All log-probabilities of every token, alone and among neighbours."""
    folder = write_folder(tiny_llama(seed=6), tmp_path)
    config = EngineConfig(model=folder, kv_cache_bytes=1 << 22, cpu_threads=threads)
    check_warm_is_cold(build_runner(config), num_logprobs=97, num_tokens=5, vocab_size=97)


@pytest.mark.weights
def test_smollm2_computes_the_same_bits_cold_and_warm() -> None:
    config = EngineConfig(model=SMOLLM2, max_model_len=256, cpu_threads=1)
    check_warm_is_cold(build_runner(config), num_logprobs=20, num_tokens=2, vocab_size=49_000)
