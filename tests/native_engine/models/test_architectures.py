"""Every architecture against transformers: tiny random float32 models, from either kind of file."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from native_engine.config import EngineConfig
from native_engine.model_runner import ModelRunner, build_runner
from tests.native_engine.checkpoints import SIZES, model_gguf, tiny_model, write_folder
from tests.native_engine.driving import GREEDY, DrivenSequence, drive
from tests.native_engine.reference import most_likely_after, prompt_logits

VOCAB_SIZE = SIZES["vocab_size"]
ALL_LOGPROBS = replace(GREEDY, num_logprobs=VOCAB_SIZE)
NUM_TOKENS = 32
PROMPT_LENGTHS = (1, 15, 16, 17, 40)

QWEN2 = {"model_type": "qwen2"}
QWEN3 = {"model_type": "qwen3", "head_dim": 32, "rope_theta": 1e6}
MISTRAL = {"model_type": "mistral", "sliding_window": None}
GEMMA3 = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 12,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": QWEN2,
    "qwen2-tied": {**QWEN2, "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3": QWEN3,
    "qwen3-tied": {**QWEN3, "tie_word_embeddings": True, "num_key_value_heads": 1},
    "mistral": MISTRAL,
    "gemma3": GEMMA3,
}
every_model = pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS.keys())
every_file = pytest.mark.parametrize("write", [write_folder, model_gguf], ids=["folder", "gguf"])


def make_model(settings: dict[str, Any], seed: int = 1) -> PreTrainedModel:
    return tiny_model(AutoConfig.for_model(**{**SIZES, **settings}), seed)


def runner_for(path: Path, **options: Any) -> ModelRunner:
    return build_runner(EngineConfig(model=path, kv_cache_bytes=1 << 23, cpu_threads=1, **options))


def random_prompts() -> list[list[int]]:
    choose = random.Random(0)
    return [[choose.randrange(VOCAB_SIZE) for _ in range(length)] for length in PROMPT_LENGTHS]


@every_model
@every_file
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, settings: dict[str, Any], write: Any
) -> None:
    """L-ROPE-THETA, L-TIED-EMBED"""
    model = make_model(settings)
    check_against_transformers(model, runner_for(write(model, tmp_path / "model")))


def check_against_transformers(model: PreTrainedModel, runner: ModelRunner) -> None:
    """Greedy tokens of prompts whole and in chunks, together; and the logits of one."""
    for chunk in (1000, 7):
        sequences = [DrivenSequence(prompt, NUM_TOKENS, chunk=chunk) for prompt in random_prompts()]
        drive(runner, sequences)
        for sequence in sequences:
            assert len(sequence.token_ids) == NUM_TOKENS
            expected = most_likely_after(model, sequence.prompt, sequence.token_ids)
            assert sequence.token_ids == expected
    sequence = DrivenSequence(random_prompts()[-1], 1, sampling=ALL_LOGPROBS)
    drive(runner, [sequence])
    ours = torch.tensor([value for _, value in sorted(sequence.outputs[0].top_logprobs)])
    theirs = torch.log_softmax(prompt_logits(model, sequence.prompt)[-1], dim=-1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@every_model
def test_a_sequence_has_the_same_bits_alone_and_in_a_batch(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """E-BATCH-INVARIANCE: all log-probabilities of every step, prompts in chunks."""
    runner = runner_for(write_folder(make_model(settings, seed=3), tmp_path))
    assert runner.deterministic
    together = [
        DrivenSequence(prompt, 8, sampling=ALL_LOGPROBS, chunk=8) for prompt in random_prompts()
    ]
    drive(runner, together)
    for sequence in together:
        alone = DrivenSequence([*sequence.prompt], 8, sampling=ALL_LOGPROBS)
        drive(runner, [alone])
        assert alone.outputs == sequence.outputs
