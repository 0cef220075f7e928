"""`turnout bench` against a real server."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.e2e.running import ROOT, Server


def bench(server: Server, *arguments: str, key: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "bench", "--url", server.base_url, *arguments],
        cwd=ROOT,
        env={**os.environ, "TURNOUT_KEY": key or server.key},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_measures_what_clients_see(echo_server: Server) -> None:
    result = bench(echo_server, "--model", "echo", "--requests", "6", "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    assert "6 good, 0 failed" in result.stdout
    assert "TTFT" in result.stdout


def test_fails_when_requests_fail(echo_server: Server) -> None:
    result = bench(echo_server, "--model", "echo", "--requests", "2", key="to_live_wrong")
    assert result.returncode == 1
    assert "401" in result.stdout
