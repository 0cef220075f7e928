"""Streams: when the status is committed, and who notices that a client has gone."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.dialects.base import Reply
from gateway.responses import EventStream, WatchedSend, run_while_connected, send_reply


class Wire:
    """An ASGI `send` that keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def kinds(self) -> list[str]:
        return [message["type"].removeprefix("http.response.") for message in self.messages]


def stream_over(wire: Wire, *, hold_s: float = 60.0, keep_alive_s: float = 60.0) -> EventStream:
    return EventStream(wire, [("X-Own", "1")], hold_s=hold_s, keep_alive_s=keep_alive_s)


async def test_nothing_is_committed_before_the_first_byte() -> None:
    wire = Wire()
    stream = stream_over(wire)
    await stream.write(b"")
    assert not stream.has_started
    assert wire.messages == []


async def test_headers_go_out_before_a_slow_first_token() -> None:
    """S-GZIP-BUFFER: within the hold, and nothing says that the stream is encoded."""
    wire = Wire()
    stream = stream_over(wire, hold_s=0.01)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(stream.keep_alive())
        while not wire.messages:
            await asyncio.sleep(0)
        waiting.cancel()
    headers = dict(wire.messages[0]["headers"])
    assert wire.kinds == ["start"]
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"x-own"] == b"1"
    assert b"content-encoding" not in headers


async def test_every_write_is_a_message_of_its_own() -> None:
    """S-GZIP-BUFFER: nothing waits for company."""
    wire = Wire()
    stream = stream_over(wire)
    await stream.write(b"data: 1\n\n")
    await stream.write(b"data: 2\n\n")
    await stream.end()
    assert wire.kinds == ["start", "body", "body", "body"]
    assert [message["more_body"] for message in wire.messages[1:]] == [True, True, False]


async def test_the_keep_alive_of_a_stream_that_is_over_at_once_can_be_cancelled() -> None:
    wire = Wire()
    stream = stream_over(wire)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(stream.keep_alive())
        await asyncio.sleep(0)
        await stream.write(b"data: 1\n\n")
        waiting.cancel()
    assert waiting.cancelled()


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # an ending may take its time
            ended.append(True)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    assert not await run_while_connected(work(), receive, WatchedSend(Wire()))
    assert ended == [True]


async def test_a_disconnect_after_the_whole_answer_cancels_nothing() -> None:
    """Servers report one when the answer is complete, and there is still a lease to settle."""
    gone = asyncio.Event()
    sent = WatchedSend(Wire())
    settled = []

    async def work() -> None:
        await send_reply(sent, Reply(body=b"{}"))
        gone.set()
        for _ in range(5):
            await asyncio.sleep(0)
        settled.append(True)

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    assert await run_while_connected(work(), receive, sent)
    assert settled == [True]
