"""FastChat's own workers, as processes of their own, behind a real server that is their controller.

What the worker says is canned (`fastchat_worker_script.py`); its HTTP, its registration, its
heartbeats and its template are FastChat's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from openai import InternalServerError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.running import ROOT, Server, serving

PYTHON = ROOT / ".venv-fastchat/bin/python"
SCRIPT = ROOT / "tests/e2e/fastchat_worker_script.py"
TABLE = ROOT / "tests/backends/static_batch/fastchat/prompts.jsonl"
EXPIRATION_S = 3

POLICY = """\
version: 1
backends:
  old: {{engine: fastchat, model: vicuna, controller_port: {port}, heart_beat_expiration_s: {s}}}
  echo: {{engine: echo}}
models:
  vicuna: {{}}
  safe: {{}}
  echo: {{}}
plans:
  demo: {{models: "*"}}
routes:
  - {{name: vicuna, match: {{model: vicuna}}, use: old}}
  - {{name: safe, match: {{model: safe}}, use: old, fallback: [echo]}}
  - {{name: all, use: echo}}
defaults:
  model: vicuna
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A server, and how to start workers for it."""

    server: Server
    controller: str
    stack: ExitStack

    def start_worker(self, name: str) -> subprocess.Popen[bytes]:
        """Returns when it listens, which is after it has registered."""
        port = free_port()
        process = self._start(str(SCRIPT), str(port), self.controller, name)
        until_listening(port)
        return process

    def start_controller(self) -> int:
        """FastChat's own; returns its port when it listens there."""
        port = free_port()
        self._start("-m", "fastchat.serve.controller", "--host=127.0.0.1", f"--port={port}")
        until_listening(port)
        return port

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [PYTHON, *arguments],
            env={
                **os.environ,
                "LOGDIR": str(self.server.home),
                "FASTCHAT_WORKER_HEART_BEAT_INTERVAL": "1",
            },
            cwd=self.server.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.stack.callback(end, process)
        return process

    def refresh(self) -> None:
        """Ask every worker how it is; those that are dead are forgotten."""
        httpx.post(f"{self.controller}/refresh_all_workers").raise_for_status()

    def num_workers(self) -> int:
        with self.server.client() as client:
            engine = client.get("/readyz").json()["backends"]["old"]["engine"]
        return int(engine.removeprefix("fastchat: ").partition(" ")[0])

    def until_workers(self, number: int) -> None:
        deadline_s = time.monotonic() + 60
        while self.num_workers() != number:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def ask(self, text: str, *, model: str = "vicuna") -> httpx.Response:
        with self.server.client() as client:
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            return client.post("/v1/chat/completions", json=body)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    assert PYTHON.exists(), "`make test` installs FastChat in an environment of its own"
    port = free_port()
    with serving(POLICY.format(port=port, s=EXPIRATION_S)) as running:
        yield running, f"http://localhost:{port}"


@pytest.fixture
def installation(server: tuple[Server, str]) -> Iterator[Installation]:
    with ExitStack() as stack:
        installation = Installation(server=server[0], controller=server[1], stack=stack)
        installation.refresh()  # forgets another test's
        yield installation


@pytest.fixture
def client(installation: Installation) -> Iterator[OpenAI]:
    server = installation.server
    with OpenAI(base_url=f"{server.base_url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def until_listening(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def say(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_a_worker_answers_whole_and_in_a_stream(installation: Installation, client: OpenAI) -> None:
    installation.start_worker("Ann")

    whole = client.chat.completions.create(model="vicuna", messages=say("hey ho"))
    with client.chat.completions.create(
        model="vicuna",
        messages=say("hey ho"),
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)

    assert whole.choices[0].message.content == "I am Ann. ho ho ho ho ho ho"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 9)
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert streamed == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_choices_stops_and_limits_are_kept(installation: Installation, client: OpenAI) -> None:
    installation.start_worker("Ann")

    stopped = client.chat.completions.create(
        model="vicuna", messages=say("ho"), n=3, stop=[". ho ho "]
    )
    short = client.chat.completions.create(model="vicuna", messages=say("ho"), max_tokens=5)

    assert [choice.message.content for choice in stopped.choices] == ["I am Ann"] * 3
    assert {choice.finish_reason for choice in stopped.choices} == {"stop"}
    assert short.choices[0].message.content == "I am Ann. ho ho"
    assert short.choices[0].finish_reason == "length"


def test_what_a_worker_cannot_do_is_refused_by_name(installation: Installation) -> None:
    installation.start_worker("Ann")
    with installation.server.client() as client:
        answer = client.post(
            "/v1/chat/completions",
            json={"model": "vicuna", "messages": say("x"), "logprobs": True},
        )
        long = client.post(
            "/v1/chat/completions", json={"model": "vicuna", "messages": say("x " * 100)}
        )
        plain = client.post("/generate", json={"inputs": "x"})
        told = client.post("/generate", json={"inputs": "x", "parameters": {"details": True}})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logprobs"
    assert "the backend old (fastchat)" in answer.json()["error"]["message"]
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert plain.json()["generated_text"].startswith("I am Ann.")
    assert told.status_code == 422, "its tokens have log-probabilities"


def test_the_worker_with_the_shorter_queue_is_next(
    installation: Installation, client: OpenAI
) -> None:
    installation.start_worker("Ann")
    installation.start_worker("Bob")
    with client.chat.completions.create(
        model="vicuna", messages=say("hold"), stream=True
    ) as holding:
        held = next(c.choices[0].delta.content for c in holding if c.choices[0].delta.content)
        installation.refresh()  # a heartbeat from before may still be on its way

        answer = installation.ask("who").json()["choices"][0]["message"]["content"]

    assert held in ("I am Ann.", "I am Bob.")
    assert answer.startswith("I am Bob." if held == "I am Ann." else "I am Ann.")


def test_a_client_that_leaves_frees_its_place_at_the_worker(
    installation: Installation, client: OpenAI
) -> None:
    """S-ABORT-N: the worker's own count of what it runs goes down."""
    installation.start_worker("Ann")
    worker = httpx.post(f"{installation.controller}/get_worker_address", json={"model": "vicuna"})
    address = worker.json()["address"]
    with client.chat.completions.create(
        model="vicuna", messages=say("hold"), n=2, stream=True
    ) as holding:
        next(c for c in holding if c.choices[0].delta.content)
        assert queue_length(address) == 2

    deadline_s = time.monotonic() + 30
    while queue_length(address):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def queue_length(address: str) -> int:
    length: int = httpx.post(f"{address}/worker_get_status").json()["queue_length"]
    return length


def test_a_worker_that_dies_in_a_stream_ends_it_with_one_error(
    installation: Installation,
) -> None:
    process = installation.start_worker("Ann")
    events: list[str] = []
    body = {"model": "vicuna", "messages": say("hold"), "stream": True}
    with (
        installation.server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(line)
            if "I am Ann." in line:
                process.kill()

    assert [event for event in events if '"error"' in event] == events[-1:]


def test_a_worker_that_dies_before_the_first_token_is_the_next_attempts_business(
    installation: Installation,
) -> None:
    installation.start_worker("Ann")

    answer = installation.ask("please die", model="safe")

    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "please die"
    assert answer.headers["x-turnout-backend"] == "echo"
    assert answer.headers["x-turnout-attempts"] == "2"


def test_a_worker_without_heartbeats_is_gone_and_registers_anew_when_it_lives(
    installation: Installation, client: OpenAI
) -> None:
    process = installation.start_worker("Ann")
    process.send_signal(signal.SIGSTOP)
    installation.until_workers(0)

    with pytest.raises(InternalServerError) as caught:
        client.chat.completions.create(model="vicuna", messages=say("ho"))
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"]

    process.send_signal(signal.SIGCONT)
    installation.until_workers(1)
    assert "I am Ann." in installation.ask("ho").text


def test_fastchats_own_controller_takes_it_for_a_worker(installation: Installation) -> None:
    installation.start_worker("Ann")
    upstream = f"http://127.0.0.1:{installation.start_controller()}"
    body = {"worker_name": installation.controller, "check_heart_beat": False}

    httpx.post(f"{upstream}/register_worker", json=body).raise_for_status()
    models = httpx.post(f"{upstream}/list_models").json()
    params = {"model": "vicuna", "prompt": "ho ASSISTANT:", "max_new_tokens": 9}
    answer = httpx.post(f"{upstream}/worker_generate_stream", json=params).content

    assert models == {"models": ["vicuna"]}
    last = json.loads(answer.rstrip(b"\0").rpartition(b"\0")[2])
    assert last["text"] == "I am Ann. ho ho ho ho ho ho"


def test_the_table_of_prompts_is_what_fastchat_itself_writes(tmp_path: Path) -> None:
    script = TABLE.with_name("write_prompts.py")
    written = subprocess.run(
        [PYTHON, script],
        env={**os.environ, "LOGDIR": str(tmp_path)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert written.stdout.decode("utf-8") == TABLE.read_text("utf-8")
