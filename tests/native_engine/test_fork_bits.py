"""A real model answers each choice of a forked prompt with the bits it answers it with alone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import EngineRequest, SampledToken, SamplingParams
from tests.native_engine.checkpoints import tiny_llama, write_folder

SMOLLM2 = Path(".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def choice(prompt: list[int], index: int, *, forks: bool, num_logprobs: int) -> EngineRequest:
    return EngineRequest(
        request_id=str(index),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=5, seed=1000 + index, num_logprobs=num_logprobs),
        fork_of="0" if forks and index else None,
    )


def answers(
    runner: ModelRunner, *requests: EngineRequest, prefix_caching: bool
) -> list[list[SampledToken]]:
    """Of a new engine, which is given all of them at once."""
    config = EngineConfig(
        model=Path("m"),
        max_num_seqs=8,
        max_num_batched_tokens=24,
        prefix_caching=prefix_caching,
    )
    engine = Engine(runner, config, clock=time.monotonic)
    tokens: dict[str, list[SampledToken]] = {r.request_id: [] for r in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            assert output.token is not None
            tokens[output.request_id].append(output.token)
    return list(tokens.values())


def check_forked_is_alone(
    runner: ModelRunner, *, lengths: tuple[int, ...], num_logprobs: int, vocab_size: int
) -> None:
    for length in lengths:
        prompt = [(7 * i + 3) % vocab_size for i in range(length)]
        alone = [
            answers(
                runner,
                choice(prompt, index, forks=False, num_logprobs=num_logprobs),
                prefix_caching=False,
            )[0]
            for index in range(4)
        ]
        family = [
            choice(prompt, index, forks=True, num_logprobs=num_logprobs) for index in range(4)
        ]
        for prefix_caching in (True, False):
            assert answers(runner, *family, prefix_caching=prefix_caching) == alone


@pytest.mark.parametrize("threads", [1, 2])
def test_a_small_model_computes_the_same_bits_forked_and_alone(
    tmp_path: Path, threads: int
) -> None:
    """All log-probabilities of every token; prompts around the ends of blocks of 16."""
    folder = write_folder(tiny_llama(seed=6), tmp_path)
    runner = build_runner(EngineConfig(model=folder, kv_cache_bytes=1 << 22, cpu_threads=threads))
    assert runner.deterministic
    check_forked_is_alone(runner, lengths=(1, 15, 16, 17, 40), num_logprobs=97, vocab_size=97)


@pytest.mark.weights
def test_smollm2_computes_the_same_bits_forked_and_alone() -> None:
    runner = build_runner(EngineConfig(model=SMOLLM2, max_model_len=256, cpu_threads=1))
    check_forked_is_alone(runner, lengths=(38,), num_logprobs=20, vocab_size=49_000)
