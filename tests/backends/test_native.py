from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.native import NATIVE, host_command
from backends.spec import BackendConfigError, BackendSpec, OptionValue


def spec(directory: Path, **options: OptionValue) -> BackendSpec:
    return BackendSpec(
        name="fast",
        engine="native",
        model="small",
        options=options,
        model_path=directory / "model.gguf",
        socket_path=directory / "fast.sock",
    )


@pytest.mark.parametrize(("mode", "caches"), [("tenant", True), ("shared", True), ("off", False)])
def test_the_engine_is_told_whether_to_cache_prefixes(
    tmp_path: Path, mode: str, caches: bool
) -> None:
    command = host_command(spec(tmp_path, prefix_cache=mode))
    options = json.loads(command[-1].removeprefix("--options="))
    model = Path(options.pop("model"))
    assert NATIVE.read_config(options, model_path=model, where="fast").prefix_caching is caches


@pytest.mark.parametrize("wrong", ["all", "", False])
def test_the_prefix_cache_is_per_tenant_shared_or_off(tmp_path: Path, wrong: OptionValue) -> None:
    with pytest.raises(
        BackendConfigError, match="'prefix_cache' must be one of 'tenant', 'shared', 'off'"
    ):
        host_command(spec(tmp_path, prefix_cache=wrong))


def test_the_engine_s_own_switch_is_no_second_option(tmp_path: Path) -> None:
    with pytest.raises(BackendConfigError, match="no option is named 'prefix_caching'"):
        host_command(spec(tmp_path, prefix_caching=False))
