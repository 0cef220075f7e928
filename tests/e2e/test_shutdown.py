"""Starting on a taken port, and stopping without cutting anybody off."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests.e2e.policies import ECHO
from tests.e2e.running import ROOT, Server, serving
from tests.e2e.streaming import stream_chat


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=server.base_url, headers=server.headers, timeout=60.0, trust_env=False
    )


def body_of(model: str, num_words: int) -> dict[str, object]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "word " * num_words}],
    }


async def test_running_streams_end_whole_and_newcomers_are_sent_away() -> None:
    """P-SHUTDOWN-STREAMS: an endless one is ended by an error event; the exit code is 0."""
    with serving(ECHO, TURNOUT_DRAIN_TIMEOUT_S="3") as server:
        async with client_of(server) as client:
            short = [
                asyncio.create_task(stream_chat(client, body_of("echo", 40))) for _ in range(5)
            ]
            endless = asyncio.create_task(stream_chat(client, body_of("slow", 200)))
            async with asyncio.timeout(30):
                while "turnout_inflight_requests 6.0" not in (await client.get("/metrics")).text:
                    await asyncio.sleep(0.02)
            os.kill(server.process.pid, signal.SIGTERM)
            async with asyncio.timeout(30):
                while (await client.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.02)
            refused = await client.post("/v1/chat/completions", json=body_of("echo", 2))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert refused.headers["connection"] == "close"
            assert all(answer.is_done for answer in await asyncio.gather(*short))
            cut = await endless
            assert cut.error
            assert not cut.is_done
        assert await asyncio.to_thread(server.process.wait, 30) == 0


def test_a_taken_port_is_an_error_at_once(tmp_path: Path) -> None:
    """P-PORT: before anything is loaded, naming the port and the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "serve"],
            cwd=ROOT,
            env={**os.environ, "TURNOUT_HOME": str(tmp_path), "TURNOUT_PORT": str(port)},
            text=True,
            capture_output=True,
            check=False,
            timeout=30,
        )
    assert result.returncode != 0
    assert str(port) in result.stderr
    assert "TURNOUT_PORT" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_outlives_a_killed_supervisor() -> None:
    """P-PORT: no orphan keeps the port."""
    with serving(ECHO) as server:
        (gateway,) = server.pids("gateway.server")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
        for _ in range(200):
            try:
                os.kill(gateway, 0)
            except ProcessLookupError:
                return
            if Path(f"/proc/{gateway}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            signal.sigtimedwait([], 0.02)
        raise AssertionError("the gateway process lives on")
