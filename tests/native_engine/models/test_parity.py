"""Every architecture, rotary scaling and window against transformers; the table is printed by
`benchmarks/model_parity.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from native_engine.config import EngineConfig
from native_engine.model_runner import build_runner
from tests.native_engine.parity import (
    CASES,
    GREEDY_TOKENS,
    ORIGINAL,
    PROMPT_TOKENS,
    differences,
    files,
    make_model,
    num_equal_greedy_tokens,
)

BOUND = 6e-5  # of the largest logit; measured 2.2e-5 at most, transformers' angles being float32
SAME_ANGLES_BOUND = 1e-5  # measured 3.4e-6 at most, transformers against itself 2.6e-6


@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_of_a_long_prompt_are_those_of_transformers(
    tmp_path: Path, name: str
) -> None:
    """L-ROPE-THETA, L-TIED-EMBED"""
    model = make_model(CASES[name])
    paths = files(name, model, tmp_path)
    difference = differences(model, paths)
    assert difference.folder < BOUND
    assert difference.gguf is None or difference.gguf < BOUND
    assert difference.same_angles < SAME_ANGLES_BOUND
    for path in paths.values():
        assert num_equal_greedy_tokens(model, path) == GREEDY_TOKENS


@pytest.mark.parametrize("name", ["Llama, linear", "Llama, yarn"])
def test_a_stretched_context_reaches_beyond_the_one_it_was_stretched_from(
    tmp_path: Path, name: str
) -> None:
    """L-ROPE-THETA: `max_position_embeddings` is the length before."""
    model = make_model(CASES[name])
    assert model.config.max_position_embeddings == ORIGINAL < PROMPT_TOKENS
    for path in files(name, model, tmp_path).values():
        runner = build_runner(EngineConfig(model=path, kv_cache_bytes=1 << 24, cpu_threads=1))
        assert runner.max_model_len == 512
