"""Heartbeats at a controller that does what FastChat's does, in this process; time is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.echo import EchoBackend
from backends.static_batch.fastchat.heartbeat import Heartbeat
from tests.backends.static_batch.fastchat.calling import worker_over

ADDRESS = "http://worker:21002"


@dataclass(slots=True)
class Controller:
    """Knows its workers until it forgets them; `trouble` is what comes in place of its answers."""

    known: set[str] = field(default_factory=set)
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    trouble: httpx.Response | httpx.TransportError | None = None

    async def register(self, request: Request) -> Response:
        body = await self._hear(request)
        self.known.add(body["worker_name"])
        return JSONResponse(None)

    async def heart_beat(self, request: Request) -> Response:
        body = await self._hear(request)
        return JSONResponse({"exist": body["worker_name"] in self.known})

    async def _hear(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.heard.append((request.url.path, body))
        return body


@dataclass(frozen=True, slots=True)
class Line(httpx.AsyncBaseTransport):
    """The way to the controller, with its trouble on it."""

    transport: httpx.ASGITransport
    controller: Controller

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        match self.controller.trouble:
            case None:
                return await self.transport.handle_async_request(request)
            case httpx.TransportError() as error:
                raise error
            case response:
                return response


@dataclass(slots=True)
class Sleeper:
    """Sleeps when asked, and wakes when told."""

    slept_s: list[float] = field(default_factory=list)
    _asleep: asyncio.Event = field(default_factory=asyncio.Event)
    _awake: asyncio.Event = field(default_factory=asyncio.Event)

    async def sleep(self, delay_s: float) -> None:
        self.slept_s.append(delay_s)
        self._asleep.set()
        await self._awake.wait()
        self._awake.clear()

    async def until_asleep(self) -> None:
        await self._asleep.wait()
        self._asleep.clear()

    async def wake(self) -> None:
        """Let time pass, until it sleeps again."""
        self._awake.set()
        await self.until_asleep()


@dataclass(frozen=True, slots=True)
class Beating:
    """A worker at its controller."""

    backend: EchoBackend
    controller: Controller
    sleeper: Sleeper

    def paths(self) -> list[str]:
        """What the controller was told since the last call."""
        paths = [path for path, _ in self.controller.heard]
        self.controller.heard.clear()
        return paths


@asynccontextmanager
async def beating(controller: Controller, interval_s: float = 45.0) -> AsyncIterator[Beating]:
    """Beats until the block ends; begins when it has fallen asleep for the first time."""
    app = Starlette(
        routes=[
            Route("/register_worker", controller.register, methods=["POST"]),
            Route("/receive_heart_beat", controller.heart_beat, methods=["POST"]),
        ]
    )
    backend, sleeper = EchoBackend("echo"), Sleeper()
    async with httpx.AsyncClient(transport=Line(httpx.ASGITransport(app), controller)) as http:
        heartbeat = Heartbeat(
            worker_over(backend),
            http,
            controller_address="http://controller:21001/",
            worker_address=ADDRESS,
            interval_s=interval_s,
            sleep=sleeper.sleep,
        )
        running = asyncio.create_task(heartbeat.run())
        await sleeper.until_asleep()
        yield Beating(backend, controller, sleeper)
        running.cancel()
        await asyncio.wait((running,))


async def test_registers_and_then_beats_every_45_s() -> None:
    async with beating(Controller()) as worker:
        assert worker.controller.heard == [
            (
                "/register_worker",
                {
                    "worker_name": ADDRESS,
                    "check_heart_beat": True,
                    "worker_status": {
                        "model_names": ["parrot", "macaw"],
                        "speed": 1,
                        "queue_length": 0,
                    },
                    "multimodal": False,
                },
            )
        ]
        worker.controller.heard.clear()

        await worker.sleeper.wake()

        assert worker.controller.heard == [
            ("/receive_heart_beat", {"worker_name": ADDRESS, "queue_length": 0})
        ]
        assert worker.sleeper.slept_s == [45.0, 45.0]


async def test_registers_anew_with_a_controller_that_has_forgotten_it() -> None:
    async with beating(Controller()) as worker:
        worker.controller.known.clear()
        worker.controller.heard.clear()

        await worker.sleeper.wake()

        assert worker.paths() == ["/receive_heart_beat", "/register_worker"]
        await worker.sleeper.wake()
        assert worker.paths() == ["/receive_heart_beat"]


async def test_asks_a_controller_that_is_down_every_5_s_until_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = Controller(trouble=httpx.ConnectError("refused"))
    async with beating(controller) as worker:
        for _ in range(3):
            await worker.sleeper.wake()
        assert worker.sleeper.slept_s == [5.0] * 4
        assert worker.paths() == []

        controller.trouble = None
        await worker.sleeper.wake()

        assert worker.paths() == ["/register_worker"]
        assert worker.sleeper.slept_s[-1] == 45.0
    assert caplog.text.count("does not answer") == 1


async def test_registers_with_a_controller_that_went_away_and_came_back_empty() -> None:
    async with beating(Controller()) as worker:
        worker.controller.trouble = httpx.ReadTimeout("silent")
        await worker.sleeper.wake()
        worker.controller.trouble = None
        worker.controller.known.clear()
        worker.controller.heard.clear()

        await worker.sleeper.wake()

        assert worker.paths() == ["/register_worker"]
        assert worker.controller.known == {ADDRESS}


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.Response(502, text="from a proxy"),
        httpx.Response(200, text="no JSON"),
        httpx.Response(200, json={"detail": "what?"}),
        httpx.Response(200, json=[]),
    ],
)
async def test_an_answer_that_is_none_of_a_controllers_is_trouble(
    trouble: httpx.Response,
) -> None:
    async with beating(Controller()) as worker:
        worker.controller.trouble = trouble

        await worker.sleeper.wake()

        assert worker.sleeper.slept_s == [45.0, 5.0]


async def test_never_sleeps_longer_than_the_interval() -> None:
    controller = Controller(trouble=httpx.ConnectError("refused"))
    async with beating(controller, interval_s=1.0) as worker:
        assert worker.sleeper.slept_s == [1.0]


async def test_says_nothing_while_its_engine_is_not_ready() -> None:
    async with beating(Controller()) as worker:
        worker.controller.heard.clear()
        await worker.backend.aclose()

        await worker.sleeper.wake()

        assert worker.paths() == []
        assert worker.sleeper.slept_s[-1] == 5.0
