from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backends.registry import BackendConfigError, BackendSpec, host_command, open_backend
from backends.spec import OptionValue
from tests.backends.conftest import REPOSITORY


def spec(
    engine: str, options: dict[str, OptionValue] | None = None, *, directory: Path | None = None
) -> BackendSpec:
    return BackendSpec(
        name="fast",
        engine=engine,
        model="small",
        options=options or {},
        model_path=directory and directory / "model.gguf",
        socket_path=directory and directory / "fast.sock",
    )


async def test_opens_a_backend_under_its_configured_name() -> None:
    backend = await open_backend(spec("echo", {"token_delay_s": 1}))

    assert backend.name == "fast"
    await backend.aclose()


@pytest.mark.parametrize(
    ("engine", "hint"),
    [("natve", "did you mean 'native'?"), ("something", "there are echo, fastchat, native, ")],
)
async def test_names_the_nearest_engine_when_there_is_none(engine: str, hint: str) -> None:
    with pytest.raises(
        BackendConfigError, match=f"fast: no engine is named '{engine}'; "
    ) as caught:
        await open_backend(spec(engine))

    assert hint in str(caught.value)


async def test_names_the_nearest_option_when_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(BackendConfigError, match="did you mean 'token_delay_s'"):
        await open_backend(spec("echo", {"token_delay": 1}))
    with pytest.raises(BackendConfigError, match="did you mean 'max_num_seqs'"):
        host_command(spec("native", {"max_num_seq": 1}, directory=tmp_path))
    with pytest.raises(BackendConfigError, match="'start_timeout_s' must be float"):
        host_command(spec("native", {"start_timeout_s": "1"}, directory=tmp_path))


def test_only_an_engine_with_a_process_has_a_command_line(tmp_path: Path) -> None:
    options: dict[str, OptionValue] = {"block_size": 32, "start_timeout_s": 5.0}

    command = host_command(spec("native", options, directory=tmp_path))

    assert host_command(spec("echo")) is None
    assert command == (
        sys.executable,
        "-m",
        "backends.host",
        f"--socket={tmp_path}/fast.sock",
        "--engine=native",
        f'--options={{"block_size": 32, "model": "{tmp_path}/model.gguf"}}',
    )


async def test_a_native_backend_needs_its_paths() -> None:
    with pytest.raises(BackendConfigError, match="fast: engine 'native' needs a model"):
        await open_backend(spec("native"))


def test_the_gateways_side_loads_no_torch() -> None:
    code = "import sys, backends.native, backends.registry; print('torch' in sys.modules)"

    output = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )

    assert output.stdout == "False\n"
