"""The newest frame of every choice of a request, between the tasks that read workers and the one
that reads the request.

Since the text of a frame is cumulative only the newest of a choice is kept: a slow reader gets
fewer and longer pieces, and memory stays bounded. Many writers, one reader, one loop. Knows no
connections.
"""

from __future__ import annotations

import asyncio

from backends.static_batch.fastchat.controller_protocol import Frame


class LatestFrames:
    """What has come and has not been taken yet."""

    def __init__(self) -> None:
        self._frames: dict[int, Frame] = {}
        self._ended: set[int] = set()
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def put(self, choice: int, frame: Frame) -> None:
        """A frame that takes the place of those before it. One that ends a choice is its last."""
        self._frames[choice] = frame
        self._changed.set()

    def end(self, choice: int) -> None:
        """Nothing more comes of this choice."""
        self._ended.add(choice)
        self._changed.set()

    def watch(self, writer: asyncio.Task[None]) -> None:
        """Let the reader know if a writer fails. The first error counts."""
        writer.add_done_callback(self._look_at)

    def _look_at(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled():
            self._error = self._error or writer.exception()
            self._changed.set()

    async def take(self) -> tuple[dict[int, Frame], set[int]]:
        """The frames by choice, and the choices that have ended behind them; at least one of both.

        Raises:
            BackendError: there are none left, and a writer failed; what else it raised, as well.
        """
        while not (self._frames or self._ended):
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        taken = self._frames, self._ended
        self._frames, self._ended = {}, set()
        return taken
