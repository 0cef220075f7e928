"""FastChat's own controller and API server over a worker of ours, with a real model."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.fastchat_processes import (
    PYTHON,
    RunningWorker,
    api_server,
    controller,
    free_port,
    until,
    worker,
)
from tests.e2e.policies import NATIVE

pytestmark = [pytest.mark.weights, pytest.mark.e2e]

MODEL = "smollm2"
CHAT = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    "temperature": 0,
    "max_tokens": 12,
}
PROMPT = {"prompt": "Once upon a time", "temperature": 0, "echo": False}


@dataclass(frozen=True, slots=True)
class Installation:
    """FastChat's API server, and the worker that it finds through the controller."""

    api: httpx.Client
    worker: RunningWorker
    controller_address: str


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    assert PYTHON.exists(), "`make test` installs FastChat in an environment of its own"
    directory = tmp_path_factory.mktemp("fastchat")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    telling = ("--controller-address", address, "--heart-beat-interval", "0.5")
    with (
        controller(directory, port),
        api_server(directory, address) as api,
        worker(directory, NATIVE, *telling, "--model-names", f"{MODEL},alias") as serving,
    ):
        until(lambda: MODEL in models(address))
        yield Installation(api, serving, address)


def models(controller_address: str) -> list[str]:
    answer = httpx.post(f"{controller_address}/list_models", trust_env=False).json()
    found: list[str] = answer["models"]
    return found


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of OpenAI's stream, without the last line."""
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_the_api_server_lists_its_models(installation: Installation) -> None:
    listed = installation.api.get("/v1/models").json()

    assert [card["id"] for card in listed["data"]] == ["alias", MODEL]


def test_a_chat_is_answered_whole_and_counted_exactly(installation: Installation) -> None:
    answer = installation.api.post("/v1/chat/completions", json=CHAT).json()

    (choice,) = answer["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert 0 < usage["completion_tokens"] <= 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_streamed_chat_is_the_whole_one_in_pieces(installation: Installation) -> None:
    whole = installation.api.post("/v1/chat/completions", json=CHAT).json()["choices"][0]

    chunks = events(installation.api.post("/v1/chat/completions", json={**CHAT, "stream": True}))

    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert len([delta for delta in deltas if delta]) > 1
    assert "".join(deltas) == whole["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_a_chat_has_the_tokens_of_the_models_own_template(installation: Installation) -> None:
    """The template writes a system message where a chat has none, and so does FastChat's."""
    user = CHAT["messages"][1]  # type: ignore[index]
    conversation: Any = installation.worker.post("/worker_get_conv_template")["conv"]
    system = {"role": "system", "content": conversation["system_message"]}

    without, told = (
        installation.api.post("/v1/chat/completions", json={**CHAT, "messages": messages}).json()
        for messages in ([user], [system, user])
    )

    assert without["usage"] == told["usage"]
    assert without["choices"] == told["choices"]
    assert "SmolLM" in conversation["system_message"]


def test_a_chat_without_max_tokens_keeps_its_whole_prompt(installation: Installation) -> None:
    """The API server then asks for all that is left of the context."""
    stopped = {**CHAT, "stop": "Paris"}
    told = installation.api.post("/v1/chat/completions", json=stopped).json()
    del stopped["max_tokens"]

    answer = installation.api.post("/v1/chat/completions", json=stopped).json()

    assert answer["usage"]["prompt_tokens"] == told["usage"]["prompt_tokens"]
    assert answer["choices"][0]["message"] == told["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_several_choices_with_a_temperature_differ(installation: Installation) -> None:
    """engine.md 4.2: a global seed is shared by concurrent requests."""
    asking = {**CHAT, "temperature": 1.5, "n": 3, "max_tokens": 16}

    choices = installation.api.post("/v1/chat/completions", json=asking).json()["choices"]

    assert len({choice["message"]["content"] for choice in choices}) > 1


def test_a_text_is_completed_with_its_echo_and_log_probabilities(
    installation: Installation,
) -> None:
    asking = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4}
    sampling = {"temperature": 0, "echo": True, "logprobs": 1}

    (choice,) = installation.api.post("/v1/completions", json={**asking, **sampling}).json()[
        "choices"
    ]

    assert choice["text"].startswith("The capital of France is Paris")
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["token_logprobs"][0] is None
    assert all(logprob <= 0 for logprob in told["token_logprobs"][1:])
    assert len(told["text_offset"]) == len(told["top_logprobs"]) == len(told["tokens"])


def test_a_controller_passes_a_stream_on(installation: Installation) -> None:
    asking = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0}

    answer = httpx.post(
        f"{installation.controller_address}/worker_generate_stream",
        json={**asking, "max_new_tokens": 4},
        trust_env=False,
    )

    *frames, rest = answer.content.split(b"\0")
    assert rest == b""
    texts = [json.loads(frame)["text"] for frame in frames]
    assert texts[-1].startswith("The capital of France is Paris")
    assert all(longer.startswith(shorter) for shorter, longer in itertools.pairwise(texts))


def test_tokens_are_checked(installation: Installation) -> None:
    prompts = [
        {"model": MODEL, "prompt": "The capital of France is", "max_tokens": max_tokens}
        for max_tokens in (10, 100_000)
    ]

    checked = installation.api.post("/api/v1/token_check", json={"prompts": prompts}).json()

    fitting, unfitting = checked["prompts"]
    assert fitting == {"fits": True, "tokenCount": 5, "contextLength": 8192}
    assert not unfitting["fits"]


@pytest.mark.parametrize(
    ("path", "body", "code", "says"),
    [
        ("/v1/embeddings", {"model": MODEL, "input": "x"}, 40301, "no embeddings"),
        (
            "/v1/completions",
            {"model": MODEL, "prompt": "x", "use_beam_search": True},
            40302,
            "use_beam_search",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "presence_penalty": 5},
            40302,
            "presence_penalty must be in",
        ),
    ],
)
def test_what_is_refused_reaches_the_client_in_words(
    installation: Installation, path: str, body: object, code: int, says: str
) -> None:
    answer = installation.api.post(path, json=body)

    assert answer.status_code == 400
    assert answer.json()["code"] == code
    assert says in answer.json()["message"]


def test_status_is_told_while_a_whole_answer_is_generated(installation: Installation) -> None:
    """E-WORKER-BLOCK."""
    serving = installation.worker
    generating = threading.Thread(
        target=serving.post, args=("/worker_generate", {**PROMPT, "max_new_tokens": 60})
    )
    generating.start()
    until(lambda: serving.post("/worker_get_status")["queue_length"] == 1)

    num_told = 0
    while serving.post("/worker_get_status")["queue_length"] == 1:
        assert serving.post("/count_token", {"prompt": "Hi"})["count"] == 1
        num_told += 1

    generating.join()
    assert num_told >= 3


def test_the_work_of_a_client_that_left_is_dropped(installation: Installation) -> None:
    """engine.md 4.2: a dropped client only ends at the next yield, and keeps its slot."""
    serving = installation.worker
    endless = {**PROMPT, "max_new_tokens": 8000}
    with serving.client.stream("POST", "/worker_generate_stream", json=endless) as response:
        chunks = response.iter_raw()  # kept, since the last reference to it hangs up
        assert json.loads(next(chunks).split(b"\0")[0])["error_code"] == 0
        assert serving.post("/worker_get_status")["queue_length"] == 1

    until(lambda: serving.post("/worker_get_status")["queue_length"] == 0)


def test_a_controller_that_was_killed_sees_the_worker_again(
    installation: Installation, tmp_path: Path
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    policy = NATIVE.split("backends:")[0] + ECHO_BACKEND
    with worker(
        tmp_path,
        policy,
        *("--controller-address", address, "--conv-template", "zero_shot"),
        *("--heart-beat-interval", "0.2"),
    ) as serving:
        for _ in range(2):  # the second one knows nobody when it starts
            with controller(tmp_path, port):
                until(lambda: models(address) == ["echo"])
        assert serving.stop() == 0


ECHO_BACKEND = """\
backends:
  echo: {engine: echo}
models:
  echo: {}
plans:
  demo: {limits: [], models: "*"}
routes:
  - {name: all, use: echo}
defaults:
  model: echo
"""
