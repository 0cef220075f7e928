"""Sending an answer over ASGI, whole or as server-sent events, while the client is there.

`EventStream` sends ready bytes; it knows no dialect. It keeps a silent stream alive with comments,
which never fall inside an event. Nothing here is buffered or compressed.
Source: the WHATWG HTML standard, section "Server-sent events"; ASGI 3.0 HTTP message format.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable

from starlette.types import Message, Receive, Send

from gateway.dialects.base import Reply
from gateway.dialects.sse import KEEP_ALIVE

STREAM_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)

Headers = Iterable[tuple[str, str]]


def encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Header pairs as ASGI wants them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def send_reply(send: Send, reply: Reply, headers: Headers = ()) -> None:
    """Send a whole answer."""
    head = (
        ("content-type", reply.media_type),
        ("content-length", str(len(reply.body))),
        *reply.headers,
        *headers,
    )
    await send(
        {"type": "http.response.start", "status": reply.status, "headers": encode_headers(head)}
    )
    await send({"type": "http.response.body", "body": reply.body})


class EventStream:
    """One streamed answer on its way out. Created per request; the first byte commits the status
    200.

    `keep_alive_s` of silence are answered with a comment, and so, after `hold_s`, is the wait for
    the first event: until then an error can still have a status of its own.
    """

    def __init__(self, send: Send, headers: Headers, *, hold_s: float, keep_alive_s: float) -> None:
        self._send = send
        self._headers = encode_headers((*STREAM_HEADERS, *headers))
        self._hold_s = hold_s
        self._keep_alive_s = keep_alive_s
        self._lock = asyncio.Lock()
        self._num_sent = 0
        self._started = asyncio.Event()

    @property
    def has_started(self) -> bool:
        """Whether the status is committed."""
        return self._started.is_set()

    async def write(self, data: bytes) -> None:
        """Send one or more whole events."""
        if not data:
            return
        async with self._lock:
            await self._start()
            self._num_sent += 1
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """Close the stream; the connection stays usable."""
        async with self._lock:
            await self._start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def keep_alive(self) -> None:
        """Run beside the writer until cancelled."""
        # not wait_for: before Python 3.12 it can lose a cancellation
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._hold_s):
                await self._started.wait()
        async with self._lock:
            await self._start()
        while True:
            seen = self._num_sent
            await asyncio.sleep(self._keep_alive_s)
            if self._num_sent == seen:
                await self.write(KEEP_ALIVE)

    async def _start(self) -> None:
        if not self.has_started:
            self._started.set()
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )


class WatchedSend:
    """An ASGI `send` that remembers whether the whole answer has been sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
        await self._send(message)


async def run_while_connected(
    work: Coroutine[None, None, None], receive: Receive, sent: WatchedSend
) -> bool:
    """Run `work`; cancel it, once, if the client goes away first. True if it ran to its end.

    Returns after `work` has ended, its `finally` blocks included. `sent` is what `work` sends with:
    servers report a disconnect after the whole answer as well, and that one does not count. The
    request body must have been read.
    """
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        leaving = tasks.create_task(_disconnected(receive, sent))
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        was_done = working.done()
        working.cancel()
        leaving.cancel()
    return was_done


async def _disconnected(receive: Receive, sent: WatchedSend) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if sent.is_complete:
        await asyncio.Event().wait()  # what is left of the work goes on
