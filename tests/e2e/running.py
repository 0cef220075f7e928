"""A real server for tests: the `turnout` command in a process of its own, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
MODEL_FILE = ROOT / ".turnout/models/SmolLM2-135M-Instruct.Q4_1.gguf"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
RECORDS_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. `key` belongs to a tenant without limits."""

    base_url: str
    key: str
    home: Path
    process: subprocess.Popen[str]
    log_path: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def client(self, *, key: str | None = None, timeout_s: float = 120.0) -> httpx.Client:
        """A plain HTTP client with a key."""
        return httpx.Client(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {key or self.key}"},
            timeout=timeout_s,
            trust_env=False,
        )

    def new_key(self, tenant: str, plan: str) -> str:
        """Create a tenant and a key for it, as an operator would."""
        turnout(self.home, "tenants", "create", tenant, "--plan", plan)
        return turnout_key(self.home, tenant)

    def pids(self, name: str) -> list[int]:
        """The processes below this server whose command line holds `name`."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
                command = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
                if int(parent) == self.process.pid and name in command:
                    found.append(int(path.name))
        return found


def turnout(home: Path, *arguments: str) -> str:
    """Run one `turnout` command to its end."""
    result = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "TURNOUT_HOME": str(home)},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def turnout_key(home: Path, tenant: str) -> str:
    """A new key of a tenant."""
    match = re.search(r"to_live_\w+", turnout(home, "keys", "create", tenant))
    assert match is not None
    return match.group()


def usage_records(home: Path, number: int) -> list[dict[str, Any]]:
    """The usage records, once there are so many: they are carried on after the answers. What a
    killed gateway had begun to carry the next one carries half a minute later."""
    deadline_s = time.monotonic() + RECORDS_TIMEOUT_S
    while True:
        records = [json.loads(row) for row in turnout(home, "usage", "records").splitlines()]
        if len(records) >= number or time.monotonic() > deadline_s:
            return records
        time.sleep(0.2)


@contextlib.contextmanager
def serving(policy: str, **environment: str) -> Iterator[Server]:
    """Serve a policy until the block ends."""
    with tempfile.TemporaryDirectory(prefix="turnout-test-") as directory:
        home = Path(directory)
        policy_path = home / "policy.yaml"
        policy_path.write_text(policy)
        log_path = home / "server.log"
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "--demo", "--port", "0"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "TURNOUT_HOME": str(home),
                    "TURNOUT_POLICY": str(policy_path),
                    **environment,
                },
                text=True,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            base_url, key = _announcement(process, log_path)
            yield Server(base_url=base_url, key=key, home=home, process=process, log_path=log_path)
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> int:
    """Tell a server to end, and wait for it; its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _announcement(process: subprocess.Popen[str], log_path: Path) -> tuple[str, str]:
    """The URL and the key that the server prints when it serves."""
    assert process.stdout is not None
    base_url = ""
    for line in process.stdout:
        if match := re.search(r"http://[\d.:]+", line):
            base_url = base_url or match.group()
        if match := re.search(r"to_live_\w+", line):
            return base_url, match.group()
    raise AssertionError(f"the server did not start:\n{log_path.read_text()}")
