"""What `turnout fastchat-worker` starts, and what it refuses before anything is started."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.fastchat_worker import split_names
from gateway.cli.main import app
from gateway.config import Settings
from gateway.fastchat_worker import WorkerOptions, children, find_backend
from gateway.launch import LaunchError, bind

POLICY = """\
version: 1
backends:
  echo: {engine: echo}
  other: {engine: echo}
models:
  echo: {}
plans:
  demo: {limits: [], models: "*"}
routes:
  - {name: all, use: echo}
defaults:
  model: echo
"""
ONE_BACKEND = POLICY.replace("  other: {engine: echo}\n", "")


def settings_of(home: Path, policy: str) -> Settings:
    path = home / "policy.yaml"
    path.write_text(policy)
    return Settings(home=home, policy=path)


def options(**changes: object) -> WorkerOptions:
    given: dict[str, object] = {
        "backend": "echo",
        "model_names": ("a", "b"),
        "worker_address": "http://127.0.0.1:21002",
        "controller_address": None,
        "limit_concurrency": 5,
        "stream_interval": 2,
        "conv_template": None,
        "heart_beat_interval_s": 45.0,
    }
    return WorkerOptions(**{**given, **changes})  # type: ignore[arg-type]


def test_the_only_backend_needs_no_name(tmp_path: Path) -> None:
    assert find_backend(settings_of(tmp_path, ONE_BACKEND), None).name == "echo"


def test_of_several_backends_one_must_be_named(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, POLICY)

    assert find_backend(settings, "other").name == "other"
    with pytest.raises(LaunchError, match=r"several backends; use --backend echo \| other"):
        find_backend(settings, None)


def test_a_backend_that_is_none_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"'eco'; use --backend echo \| other"):
        find_backend(settings_of(tmp_path, POLICY), "eco")


def test_the_worker_alone_inherits_the_socket_and_stops_before_the_engine(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    native = f"  echo: {{engine: native, model: {model}}}"
    settings = settings_of(tmp_path, POLICY.replace("  echo: {engine: echo}", native))

    with bind("127.0.0.1", 0) as listening:
        (engine,), (worker,) = children(settings, options(), tmp_path, listening)

        assert engine.pass_fds == ()
        assert worker.pass_fds == (listening.fileno(),)
        assert worker.stop_timeout_s > settings.drain_timeout_s
        assert worker.environment["TURNOUT_RUN_DIR"] == str(tmp_path)


def test_a_backend_without_a_process_starts_none(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as listening:
        engines, (worker,) = children(settings_of(tmp_path, POLICY), options(), tmp_path, listening)

    assert engines == []
    told = json.loads(worker.command[worker.command.index("--options") + 1])
    assert told["model_names"] == ["a", "b"]


def test_names_are_those_between_commas() -> None:
    assert split_names("smollm2, gpt-4o-mini,") == ("smollm2", "gpt-4o-mini")
    assert split_names(None) == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_nobody_can_reach_is_not_registered(host: str) -> None:
    result = CliRunner().invoke(app, ["fastchat-worker", "--host", host])

    assert result.exit_code == 2
    assert "--worker-address" in result.stderr


@pytest.fixture
def own_logging() -> Iterator[None]:
    """The command sends all logging to its standard error, which ends with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("arguments", "policy", "says"),
    [
        (["--conv-template", "chatmll"], ONE_BACKEND, "did you mean 'chatml'"),
        (["--backend", "eco"], ONE_BACKEND, "use --backend echo"),
        ([], POLICY, "several backends"),
        ([], "version: 2\n", "version"),
        (["--host", "nowhere.invalid"], ONE_BACKEND, "nowhere.invalid"),
    ],
)
def test_the_command_refuses_in_one_line_what_can_never_work(
    tmp_path: Path, arguments: list[str], policy: str, says: str
) -> None:
    path = settings_of(tmp_path, policy).policy

    result = CliRunner().invoke(
        app, ["fastchat-worker", "--policy", str(path), "--port", "0", *arguments]
    )

    assert result.exit_code == os.EX_CONFIG
    assert says in result.stderr


@pytest.mark.usefixtures("own_logging")
def test_a_taken_port_names_the_flag_that_chooses_another(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        path = settings_of(tmp_path, ONE_BACKEND).policy

        result = CliRunner().invoke(app, ["fastchat-worker", "--policy", str(path), "--port", port])

    assert result.exit_code == os.EX_CONFIG
    assert "set --port to another port" in result.stderr
