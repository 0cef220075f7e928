from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from backends.priority_batcher.config import PriorityBatcherConfig, resolve
from native_engine.errors import EngineError
from tests.native_engine.stub_runner import StubRunner


def config(**options: Any) -> PriorityBatcherConfig:
    return PriorityBatcherConfig(model=Path("stub"), **options)


def test_names_and_defaults_are_tgi_s() -> None:
    """As its launcher documents them; 0 is its "none"."""
    defaults = {field.name: getattr(config(), field.name) for field in fields(config())}
    assert defaults["max_concurrent_requests"] == 128
    assert defaults["waiting_served_ratio"] == 0.3
    assert defaults["max_waiting_tokens"] == 20
    assert defaults["max_batch_size"] == 0
    automatic = ("max_input_tokens", "max_total_tokens", "max_batch_total_tokens")
    assert [defaults[name] for name in automatic] == [0, 0, 0]


def test_what_nobody_said_comes_from_the_runner() -> None:
    resolved = resolve(config(), StubRunner(num_blocks=64, block_size=4, max_model_len=200))
    assert resolved.max_batch_total_tokens == 256
    assert resolved.max_total_tokens == 200
    assert resolved.max_input_tokens == 199
    assert resolved.max_batch_prefill_tokens == 249
    assert resolved.max_batch_size == 128
    assert resolve(resolved, StubRunner(num_blocks=64, block_size=4)) == resolved


def test_a_small_pool_limits_a_request() -> None:
    resolved = resolve(config(), StubRunner(num_blocks=10, block_size=4))
    assert (resolved.max_total_tokens, resolved.max_input_tokens) == (40, 39)


def test_a_prompt_that_one_prefill_cannot_take_is_too_long_without_chunking() -> None:
    runner = StubRunner()
    assert resolve(config(max_batch_prefill_tokens=30), runner).max_input_tokens == 30
    chunked = config(max_batch_prefill_tokens=30, chunking=True)
    assert resolve(chunked, runner).max_input_tokens == 199


def test_more_may_not_run_than_may_be_here() -> None:
    resolved = resolve(config(max_batch_size=500, max_concurrent_requests=7), StubRunner())
    assert resolved.max_batch_size == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_total_tokens": 201}, "context and pool hold 200: lower it"),
        ({"max_input_tokens": 200}, "leaves no room for an answer in 200"),
        ({"max_batch_total_tokens": 257}, "the pool holds 256"),
        ({"max_batch_total_tokens": 100, "max_input_tokens": 100}, "no room for an answer in 100"),
    ],
)
def test_refuses_limits_that_the_runner_does_not_hold(
    options: dict[str, int], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        resolve(config(**options), StubRunner(num_blocks=64, block_size=4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrent_requests": 0}, "max_concurrent_requests must be in"),
        ({"max_input_tokens": -1}, "max_input_tokens must be"),
        ({"max_input_tokens": 8, "max_total_tokens": 8}, "below max_total_tokens"),
        ({"waiting_served_ratio": -0.1}, "waiting_served_ratio must be"),
        ({"waiting_served_ratio": float("inf")}, "waiting_served_ratio must be"),
        ({"max_batch_prefill_tokens": 5, "max_input_tokens": 6}, "at least max_input_tokens"),
        ({"max_batch_total_tokens": 5, "max_total_tokens": 6}, "at least max_total_tokens"),
        ({"max_batch_total_tokens": 5, "kv_cache_bytes": 6}, "set one of them"),
        ({"max_waiting_tokens": 0}, "max_waiting_tokens must be at least 1"),
        ({"max_batch_size": -1}, "max_batch_size must be"),
        ({"default_generation_length": 0}, "default_generation_length must be"),
        ({"max_bypass": -1}, "max_bypass must be"),
        ({"block_size": 7}, "block_size must be a power of two"),
    ],
)
def test_says_which_option_is_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_the_pool_is_as_large_as_the_batch_may_be() -> None:
    assert config(max_batch_total_tokens=1000).cache_tokens(200) == 1000
    assert config(kv_cache_bytes=1000).cache_bytes() == 1000


def test_a_step_has_as_many_rows_as_a_prefill_or_the_whole_batch() -> None:
    assert config().max_step_rows(200) >= 250
    assert config(max_batch_prefill_tokens=10, chunking=True).max_step_rows(200) == 128
    assert config(max_input_tokens=300).max_step_rows(1000) >= 350
