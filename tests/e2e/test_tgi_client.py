"""TGI's own `text-generation` client against a real server and a real model."""

from __future__ import annotations

import json
import subprocess

from tests.e2e.running import ROOT, Server

PYTHON = ROOT / ".venv-tgi/bin/python"
SCRIPT = ROOT / "tests/e2e/tgi_client_script.py"


def test_generates_streams_and_is_told_what_is_wrong(server: Server) -> None:
    assert PYTHON.exists(), "`make test` installs TGI's client in an environment of its own"
    result = subprocess.run(
        [PYTHON, SCRIPT, server.base_url, server.key],
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert "Paris" in found["text"]
    assert found["generated_tokens"] == 6
    assert found["finish_reason"] == "length"
    assert found["streamed"] == found["text"] == found["final"]
    assert "`inputs` tokens + `max_new_tokens` must be <= " in found["refusal"]
    assert found["chat"]
