"""A worker in this process, and one request to it spoken by hand, so that a test decides when the
client leaves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backends.static_batch.fastchat.templates import named
from backends.static_batch.fastchat.worker import TokenizingBackend, Worker, build_app

Frame = dict[str, Any]


def worker_over(
    backend: TokenizingBackend,
    *,
    limit_concurrency: int = 5,
    stream_interval: int = 2,
    draw_seed: Callable[[], int] = lambda: 0,
) -> Worker:
    return Worker(
        backend,
        model_names=("parrot", "macaw"),
        conversation=named("chatml"),
        limit_concurrency=limit_concurrency,
        stream_interval=stream_interval,
        draw_seed=draw_seed,
    )


@dataclass(slots=True)
class Caller:
    """One POST, and what came back."""

    worker: Worker
    path: str
    body: bytes
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    media_type: str = "application/json"
    stalls: bool = False  # reads one chunk and no more, until it leaves
    status: int = 0
    raw: bytes = b""
    is_complete: bool = False
    _is_body_sent: bool = False

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("127.0.0.1", 21002),
            "client": ("127.0.0.1", 1),
            "headers": [(b"content-type", self.media_type.encode())],
        }
        async with asyncio.timeout(30):  # a slot that is lost would be waited for in vain
            await build_app(self.worker)(scope, self._receive, self._send)

    def json(self) -> Frame:
        """The whole answer."""
        found: Frame = json.loads(self.raw)
        return found

    def frames(self) -> list[Frame]:
        """The answer frame by frame."""
        *frames, rest = self.raw.split(b"\0")
        assert rest == b""
        return [json.loads(frame) for frame in frames]

    async def _receive(self) -> dict[str, Any]:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.leave.wait()  # as servers do, also when the answer is complete
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.raw += message.get("body", b"")
        if self.stalls:
            await asyncio.Event().wait()
        self.is_complete = not message.get("more_body", False)
        if self.is_complete:
            self.leave.set()


def caller(worker: Worker, path: str, body: object = b"") -> Caller:
    """A request, not sent yet. `body` is JSON unless it is bytes."""
    return Caller(worker, path, body if isinstance(body, bytes) else json.dumps(body).encode())


async def post(worker: Worker, path: str, body: object = b"") -> Frame:
    """Send a request and wait for its JSON."""
    calling = caller(worker, path, body)
    await calling.run()
    assert calling.status == 200
    return calling.json()


async def stream(worker: Worker, body: object) -> list[Frame]:
    """All frames of a streamed answer."""
    calling = caller(worker, "/worker_generate_stream", body)
    await calling.run()
    assert calling.status == 200
    return calling.frames()
