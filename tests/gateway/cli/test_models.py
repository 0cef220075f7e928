from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gateway.catalog import CATALOG, model_path
from gateway.cli.models import _ConsoleReporter, app

DEFAULT = CATALOG["smollm2-135m-instruct"]
REPOSITORY = Path(__file__).parents[3]


def turnout(home: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"TURNOUT_HOME": str(home)})
    return result.exit_code, result.output


def put_file(home: Path, size_bytes: int) -> None:
    path = model_path(DEFAULT, home)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(size_bytes)


@pytest.mark.parametrize(
    ("size_bytes", "state"),
    [(None, "not pulled"), (1, "damaged"), (DEFAULT.size_bytes, "pulled")],
)
def test_lists_models_with_licence_and_state(
    tmp_path: Path, size_bytes: int | None, state: str
) -> None:
    if size_bytes is not None:
        put_file(tmp_path, size_bytes)
    status, output = turnout(tmp_path, "list")
    first, second = output.splitlines()
    assert status == 0
    assert first.split()[:4] == ["smollm2-135m-instruct", "98", "MB", "Apache-2.0"]
    assert f" {state} " in first
    assert second.startswith("gemma3-270m")


def test_an_unknown_model_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    status, output = turnout(tmp_path, "pull", "smollm2")
    assert status == 1
    assert output.startswith("error: no model is named 'smollm2'")


def test_a_wrong_local_file_is_an_error_and_nothing_is_kept(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF")
    status, output = turnout(tmp_path, "pull", DEFAULT.name, "--from", f"file:{wrong}")
    assert status == 1
    assert "License: Apache-2.0" in output
    assert "it has 4 bytes" in output
    assert not model_path(DEFAULT, tmp_path).exists()


def test_shows_the_terms_of_gemma(tmp_path: Path) -> None:
    _, output = turnout(tmp_path, "pull", "gemma3-270m", "--from", "nowhere.gguf")
    assert "Gemma Terms of Use found at https://ai.google.dev/gemma/terms" in output


@pytest.mark.weights
def test_puts_the_default_model_in_place_and_leaves_it_alone_the_second_time(
    tmp_path: Path,
) -> None:
    source = model_path(DEFAULT, REPOSITORY / ".turnout")
    status, output = turnout(tmp_path, "pull", DEFAULT.name, "--from", str(source))
    assert (status, "sha256 is right" in output) == (0, True)
    status, output = turnout(tmp_path, "pull", DEFAULT.name)
    assert (status, "is already here" in output) == (0, True)


def test_draws_a_bar_on_a_terminal_and_nothing_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for terminal in (True, False):
        reporter = _ConsoleReporter(Console(force_terminal=terminal, width=100))
        assert reporter.interactive is terminal
        with reporter.copying("x.gguf", 2_000) as advance:
            advance(2_000)
        assert ("2.0/2.0 kB" in capsys.readouterr().out) is terminal


def test_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pydantic", "yaml", "httpx", "sqlalchemy", "starlette"}
    code = f"import gateway.cli.models, sys; raise SystemExit(str({heavy} & sys.modules.keys()))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=REPOSITORY
    )
    assert result.stderr.strip() == "set()"
