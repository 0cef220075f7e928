"""Both sides of its process: the gateway's, which checks the options, and the engine's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backends.priority_batcher.backend import PRIORITY_BATCHER, host_command
from backends.priority_batcher.process import open_engine
from backends.spec import BackendConfigError, BackendSpec, OptionValue
from gateway.policy.load import parse
from native_engine.errors import EngineError
from tests.backends.conftest import MODEL, EngineProcesses

POLICY = """
version: 1
backends: {tgi: {engine: priority_batcher, model: smollm2-135m-instruct, waiting_served_ratio: 1.2}}
models: {chat: {}}
plans: {all: {models: "*"}}
routes: [{name: all, use: tgi}]
"""


def spec(directory: Path, **options: OptionValue) -> BackendSpec:
    return BackendSpec(
        name="tgi",
        engine="priority_batcher",
        model="small",
        options=options,
        model_path=directory / "model.gguf",
        socket_path=directory / "tgi.sock",
    )


def test_a_policy_may_name_it_with_tgi_s_options() -> None:
    backend = parse(POLICY, "policy.yaml").backends["tgi"]
    assert (backend.engine, backend.options) == (
        "priority_batcher",
        {"waiting_served_ratio": 1.2},
    )


def test_the_process_is_given_the_options_as_they_were_said(tmp_path: Path) -> None:
    command = host_command(spec(tmp_path, max_waiting_tokens=7, prefix_cache="off"))
    assert "--engine=priority_batcher" in command
    options = json.loads(command[-1].removeprefix("--options="))
    model = Path(options.pop("model"))
    config = PRIORITY_BATCHER.read_config(options, model_path=model, where="tgi")
    assert (config.max_waiting_tokens, config.prefix_caching) == (7, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_prefill_token": 5}, "did you mean 'max_batch_prefill_tokens'"),
        ({"max_waiting_tokens": 0}, "max_waiting_tokens must be at least 1"),
        ({"max_num_seqs": 5}, "no option is named 'max_num_seqs'"),
        ({"kv_cache_bytes": 5, "max_batch_total_tokens": 5}, "set one of them"),
    ],
)
def test_a_wrong_option_is_an_error_before_anything_starts(
    tmp_path: Path, options: dict[str, OptionValue], message: str
) -> None:
    with pytest.raises(BackendConfigError, match=message):
        host_command(spec(tmp_path, **options))


def test_a_process_whose_model_is_not_there_says_it_is_of_no_use_to_try_again(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    process = engines.start_on(
        tmp_path / "engine.sock",
        engine="priority_batcher",
        options={"model": str(tmp_path / "missing.gguf")},
    )

    assert process.wait() == os.EX_CONFIG


@pytest.mark.weights
def test_refuses_more_tokens_than_the_context_has() -> None:
    with pytest.raises(EngineError, match="max_total_tokens is 9000, and context and pool hold"):
        open_engine({"model": str(MODEL), "max_total_tokens": 9000})
