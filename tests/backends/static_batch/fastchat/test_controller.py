"""The controller over a real socket, with workers on sockets of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from backends.static_batch.fastchat.controller import MAX_BODY_BYTES, Controller
from backends.static_batch.fastchat.dispatch import Registry
from backends.static_batch.fastchat.worker_address import AddressRule
from backends.static_batch.fastchat.worker_client import WorkerClient
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    Params,
    frame,
    says,
    serving,
)
from tests.clock import FakeClock

STATUS = {"model_names": ["vicuna"], "speed": 1, "queue_length": 0}


class Served:
    """A controller that listens, and a client of its own for it."""

    def __init__(self, address: str, clock: FakeClock) -> None:
        self.address = address
        self.clock = clock
        self._http = httpx.AsyncClient(base_url=address, trust_env=False, timeout=30.0)

    async def post(self, path: str, body: object = None) -> httpx.Response:
        return await self._http.post(path, json=body)

    async def ask(self, path: str, body: object = None) -> object:
        response = await self.post(path, body)
        assert response.status_code == 200, response.text
        answer: object = response.json()
        return answer

    async def register(self, name: str, status: object = STATUS, **members: object) -> None:
        body = {"worker_name": name, "check_heart_beat": True, "worker_status": status, **members}
        assert await self.ask("/register_worker", body) is None

    async def send(self, path: str, content: bytes, media_type: str) -> httpx.Response:
        return await self._http.post(path, content=content, headers={"content-type": media_type})

    async def get(self, path: str) -> httpx.Response:
        return await self._http.get(path)

    async def frames(self, body: object) -> list[Params]:
        response = await self.post("/worker_generate_stream", body)
        assert response.content.endswith(b"\0")
        return [json.loads(raw) for raw in response.content[:-1].split(b"\0")]

    async def aclose(self) -> None:
        await self._http.aclose()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    clock = FakeClock()
    client = WorkerClient(timeout_s=30.0)
    controller = Controller(
        Registry("shortest_queue", 90.0), client, AddressRule(), clock=clock, draw=lambda: 0.0
    )
    async with serving(controller.build_app()) as address:
        served = Served(address, clock)
        yield served
        await served.aclose()
    await client.aclose()


async def test_answers_as_fastchats_controller_does(served: Served) -> None:
    await served.register("http://localhost:1")
    await served.register("http://localhost:2", {**STATUS, "model_names": ["llava"]},
                          multimodal=True)  # fmt: skip

    assert await served.ask("/list_models") == {"models": ["llava", "vicuna"]}
    assert await served.ask("/list_multimodal_models") == {"models": ["llava"]}
    assert await served.ask("/list_language_models") == {"models": ["vicuna"]}
    assert await served.ask("/get_worker_address", {"model": "vicuna"}) == {
        "address": "http://localhost:1"
    }
    assert await served.ask("/get_worker_address", {"model": "none"}) == {"address": ""}
    beat = {"worker_name": "http://localhost:1", "queue_length": 3}
    assert await served.ask("/receive_heart_beat", beat) == {"exist": True}
    unknown = {"worker_name": "http://localhost:9", "queue_length": 3}
    assert await served.ask("/receive_heart_beat", unknown) == {"exist": False}
    assert (await served.get("/test_connection")).json() == "success"


async def test_a_worker_without_heartbeats_is_gone_after_the_expiration(served: Served) -> None:
    await served.register("http://localhost:1")
    await served.register("http://localhost:2", check_heart_beat=False)

    served.clock.advance(90.5)

    beat = {"worker_name": "http://localhost:1", "queue_length": 0}
    assert await served.ask("/receive_heart_beat", beat) == {"exist": False}
    assert await served.ask("/get_worker_address", {"model": "vicuna"}) == {
        "address": "http://localhost:2"
    }


async def test_asks_a_worker_that_registers_without_a_status(served: Served) -> None:
    async with CannedWorker(model="llama").running() as worker:
        await worker.register(served.address, worker_status=None)

        assert worker.calls == ["/worker_get_status"]
        assert await served.ask("/list_models") == {"models": ["llama"]}


async def test_a_worker_that_gives_no_status_is_not_registered(served: Served) -> None:
    async with CannedWorker().running() as worker:
        gone = worker.address
    body = {"worker_name": gone, "check_heart_beat": True}

    response = await served.post("/register_worker", body)

    assert response.status_code == 400
    assert "cannot be reached" in response.json()["text"]
    assert await served.ask("/list_models") == {"models": []}


async def test_refreshing_keeps_who_answers_and_forgets_the_others(served: Served) -> None:
    async with CannedWorker(model="new").running() as worker:
        await worker.register(served.address, worker_status={**STATUS, "model_names": ["old"]})
        async with CannedWorker(model="gone").running() as other:
            await other.register(served.address)

        assert await served.ask("/list_models") == {"models": ["gone", "old"]}
        assert await served.ask("/refresh_all_workers") is None
        assert await served.ask("/list_models") == {"models": ["new"]}


async def test_acts_as_a_worker_of_another_controller(served: Served) -> None:
    async with CannedWorker(model="a").running() as a, CannedWorker(model="b").running() as b:
        await a.register(served.address)
        await b.register(served.address)
        await served.register("http://localhost:1", {**STATUS, "model_names": ["c"]})

        assert await served.ask("/worker_get_status") == {
            "model_names": ["a", "b"],  # nobody listens at port 1
            "speed": 2.0,
            "queue_length": 0,
        }


async def test_forwards_frames_as_they_are(served: Served) -> None:
    frames = (frame("a", logprobs=[1]), frame("a b", "stop", tokens=2))
    async with CannedWorker(says(*frames)).running() as worker:
        await worker.register(served.address)
        params = {"model": "vicuna", "prompt": "x", "unknown": [1]}

        got = await served.frames(params)

        assert [json.dumps(one).encode() + b"\0" for one in got] == list(frames)
        assert worker.asked == [params]


async def test_without_a_worker_one_frame_says_so(served: Served) -> None:
    [only] = await served.frames({"model": "vicuna"})

    assert only == {"text": "no worker serves 'vicuna'", "error_code": 50005}


async def test_a_worker_that_breaks_off_ends_in_a_whole_error_frame(served: Served) -> None:
    async with CannedWorker(says(frame("a"), b'{"text": "a b')).running() as worker:
        await worker.register(served.address)

        first, last = await served.frames({"model": "vicuna"})

        assert first["text"] == "a"
        assert last["error_code"] == 50006


async def test_heartbeats_are_answered_while_workers_say_nothing(served: Served) -> None:
    """E-WORKER-BLOCK: FastChat's controller calls workers from inside its event loop."""
    asked = asyncio.Event()
    hangs = asyncio.Event()

    async def hang(scope: object, receive: object, send: object) -> None:
        asked.set()
        await hangs.wait()

    await served.register("http://localhost:1")
    async with serving(hang) as silent:
        body = {"worker_name": silent, "check_heart_beat": True}
        registering = asyncio.create_task(served.post("/register_worker", body))
        await asked.wait()

        beat = {"worker_name": "http://localhost:1", "queue_length": 1}
        assert await served.ask("/receive_heart_beat", beat) == {"exist": True}

        assert not registering.done()
        hangs.set()
        assert (await registering).status_code == 400


async def test_a_client_that_leaves_frees_the_worker(served: Served) -> None:
    """S-ABORT-N: through the controller, too."""
    async with CannedWorker().running() as worker:
        await worker.register(served.address)
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            client.stream(
                "POST",
                f"{served.address}/worker_generate_stream",
                json={"model": "vicuna", "prompt": "word ", "max_new_tokens": 10**6},
            ) as response,
        ):
            await anext(response.aiter_raw())
            assert worker.num_running == 1
        async with asyncio.timeout(30):
            while worker.num_running:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/register_worker", {}, "worker_name"),
        ("/register_worker", [], "the body"),
        ("/register_worker", {"worker_name": 7, "check_heart_beat": True}, "worker_name"),
        ("/register_worker", {"worker_name": "x", "check_heart_beat": 1}, "check_heart_beat"),
        (
            "/register_worker",
            {"worker_name": "x", "check_heart_beat": True, "worker_status": {"speed": 1}},
            "worker_status.model_names",
        ),
        (
            "/register_worker",
            {
                "worker_name": "http://localhost:1",
                "check_heart_beat": True,
                "worker_status": {**STATUS, "speed": -1},
            },
            "worker_status.speed",
        ),
        ("/register_worker", {"worker_name": "x", "check_heart_beat": True}, "worker address 'x'"),
        (
            "/register_worker",
            {"worker_name": "http://169.254.169.254", "check_heart_beat": True},
            "worker_hosts",
        ),
        ("/receive_heart_beat", {"worker_name": "x"}, "queue_length"),
        ("/receive_heart_beat", {"worker_name": "x", "queue_length": -1}, "queue_length"),
        ("/receive_heart_beat", {"worker_name": "x", "queue_length": True}, "queue_length"),
        ("/get_worker_address", {"model": None}, "model"),
        ("/worker_generate_stream", {"prompt": "x"}, "model"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_member(
    served: Served, path: str, body: object, where: str
) -> None:
    response = await served.post(path, body)

    assert response.status_code == 400
    assert response.json()["error_code"] == 40001
    assert where in response.json()["text"]


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"", "application/json", 400),
        (b'{"a": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"{}", "text/plain", 415),  # what a web page may send anywhere
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b" " * (MAX_BODY_BYTES + 1), "application/json", 413),
    ],
)
async def test_what_is_no_json_is_refused(
    served: Served, content: bytes, media_type: str, status: int
) -> None:
    response = await served.send("/register_worker", content, media_type)

    assert response.status_code == status
    assert response.json()["error_code"] == 40001


async def test_other_paths_and_methods_are_refused_in_json(served: Served) -> None:
    missing, wrong = await served.post("/nothing"), await served.get("/list_models")

    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error_code"] == wrong.json()["error_code"] == 40001
