"""The whole engine against transformers: 20 prompts of 64 greedy tokens, the same weights, float32.

transformers' answer is checked in one pass over prompt and answer: a sequence whose every token is
the most likely one after all before it is the greedy answer, whoever computes it.
`test_model_runner` compares with its own token-by-token decoding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.text.tokenizer import load_tokenizer
from native_engine.config import EngineConfig
from native_engine.engine import Engine
from native_engine.model_runner import ModelRunner, build_runner
from native_engine.types import EngineRequest, SamplingParams
from tests.native_engine.reference import most_likely_after, transformers_model

MODEL = Path(__file__).parents[2] / ".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf"
NUM_TOKENS = 64

TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "One, two, three, four,",
    "Water boils at",
    "<|im_start|>user\nWhat is photosynthesis?<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox",
    "In 1969, the first man",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "La tour Eiffel se trouve à",
    "The three primary colors are",
    "E = mc^2 means that",
    "Roses are red,",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName a bird.<|im_end|>\n",
    "import numpy as np\n\n",
    "The meaning of life",
    "Ingredients: flour, sugar,",
    "0 1 1 2 3 5 8 13",
    "A list of European countries: " * 8,
)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return build_runner(EngineConfig(model=MODEL, max_model_len=256, cpu_threads=1))


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(MODEL)
    return [tuple(tokenizer.encode(text, add_special_tokens=True)) for text in TEXTS]


def answers(runner: ModelRunner, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """What a fresh engine answers to all prompts at once."""
    engine = Engine(
        runner,
        EngineConfig(
            model=Path("smollm2"), max_num_seqs=32, max_num_batched_tokens=64, max_waiting=0
        ),
        clock=time.monotonic,
    )
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    generated: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        generated[str(number)] = []
        engine.add(
            EngineRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling)
        )
    while engine.has_work:
        for output in engine.step():
            assert output.token is not None
            generated[output.request_id].append(output.token.token_id)
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return list(generated.values())


@pytest.mark.weights
def test_20_answers_of_64_tokens_are_those_of_transformers_batched_and_alone(
    runner: ModelRunner, prompts: list[tuple[int, ...]]
) -> None:
    """E-BATCH-INVARIANCE: and one by one they are what they were together."""
    together = answers(runner, prompts)
    assert [len(answer) for answer in together] == [NUM_TOKENS] * len(TEXTS)
    alone = [answers(runner, [prompt])[0] for prompt in prompts]
    assert together == alone
    model = transformers_model(runner._model)
    for prompt, answer in zip(prompts, together, strict=True):
        assert answer == most_likely_after(model, prompt, answer)
