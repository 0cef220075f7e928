"""A worker that speaks FastChat's protocol over a socket, and says what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from backends.echo import split

Params = dict[str, Any]
Write = Callable[[Params], AsyncGenerator[bytes, None]]

VICUNA: dict[str, Any] = {
    "name": "vicuna",
    "system_template": "{system_message}",
    "system_message": "Be kind.",
    "roles": ["USER", "ASSISTANT"],
    "messages": [],
    "offset": 0,
    "sep_style": 2,
    "sep": " ",
    "sep2": "</s>",
    "stop_str": None,
    "stop_token_ids": [2],
}


def frame(
    text: str, finish_reason: str | None = None, *, tokens: int | None = None, **members: object
) -> bytes:
    """One frame with its end; tokens: of the answer, a prompt has always 7."""
    body: dict[str, object] = {"text": text, "error_code": 0, "finish_reason": finish_reason}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7}
    return json.dumps({**body, **members}).encode() + b"\0"


async def echo(params: Params) -> AsyncGenerator[bytes, None]:
    """The prompt's words over and over, as many as were asked for, a frame for each."""
    text = ""
    count = params["max_new_tokens"]
    words = itertools.islice(itertools.cycle(split(params["prompt"])), count)
    for number, word in enumerate(words, start=1):
        text += word
        yield frame(text, "length" if number == count else None, tokens=number)


def says(*pieces: bytes) -> Write:
    """Sends these bytes as they are, each by itself."""

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece

    return write


class CannedWorker:
    """One model, at `address` while it runs. `asked` has the params of every answer so far."""

    def __init__(
        self,
        write: Write = echo,
        *,
        model: str = "vicuna",
        conversation: dict[str, Any] | None = None,
        context_length: int | None = 2048,
        counts: bool = True,
    ) -> None:
        self.address = ""
        self.asked: list[Params] = []
        self.num_running = 0
        self.calls: list[str] = []
        self.silence = asyncio.Event()  # set when the worker stops
        self.model = model
        self._write = write
        self._conversation = {**VICUNA, **(conversation or {})}
        self._context_length = context_length
        self._counts = counts

    @property
    def status(self) -> dict[str, object]:
        return {"model_names": [self.model], "speed": 1, "queue_length": self.num_running}

    async def register(self, controller: str, **members: object) -> None:
        """As a worker does when it starts."""
        body = {
            "worker_name": self.address,
            "check_heart_beat": True,
            "worker_status": self.status,
            "multimodal": False,
            **members,
        }
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.post(f"{controller}/register_worker", json=body)
            assert response.status_code == 200, response.text

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CannedWorker]:
        """Serves until the block ends, or until it is stopped."""
        async with serving(self._app()) as self.address:
            try:
                yield self
            finally:
                self.silence.set()

    def _app(self) -> Starlette:
        answers: dict[str, Callable[[Params], Any]] = {
            "/worker_get_status": lambda _: self.status,
            "/worker_get_conv_template": lambda _: {"conv": self._conversation},
            "/model_details": lambda _: {"context_length": self._context_length},
            "/count_token": lambda params: {
                "count": len(split(params["prompt"])) if self._counts else 0,
                "error_code": 0,
            },
        }

        async def answer(request: Request) -> Response:
            self.calls.append(request.url.path)
            body = await request.body()
            return JSONResponse(answers[request.url.path](json.loads(body or b"{}")))

        async def generate(request: Request) -> Response:
            params = await request.json()
            self.asked.append(params)
            return StreamingResponse(self._generate(params))

        return Starlette(
            routes=[
                *(Route(path, answer, methods=["POST"]) for path in answers),
                Route("/worker_generate_stream", generate, methods=["POST"]),
            ]
        )

    async def _generate(self, params: Params) -> AsyncIterator[bytes]:
        self.num_running += 1
        try:
            async for piece in self._write(params):
                yield piece
                await asyncio.sleep(0)  # so that it leaves by itself
        finally:
            self.num_running -= 1


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """An application on a free port of this machine, in this loop; its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = _Server(
            uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=5)
        )
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
