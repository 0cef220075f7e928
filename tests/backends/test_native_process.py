from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.native_process import open_engine
from backends.spec import BackendConfigError
from native_engine.errors import ModelFileError
from tests.backends.conftest import MODEL, EngineProcesses


def test_refuses_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"missing\.gguf"):
        open_engine({"model": str(tmp_path / "missing.gguf")})


def test_a_process_whose_model_is_not_there_says_it_is_of_no_use_to_try_again(
    engines: EngineProcesses, tmp_path: Path
) -> None:
    process = engines.start_on(
        tmp_path / "engine.sock",
        engine="native",
        options={"model": str(tmp_path / "missing.gguf")},
    )

    assert process.wait() == os.EX_CONFIG


@pytest.mark.weights
def test_refuses_an_option_it_does_not_know() -> None:
    with pytest.raises(BackendConfigError, match="did you mean 'block_size'"):
        open_engine({"model": str(MODEL), "block_sizes": 16})
