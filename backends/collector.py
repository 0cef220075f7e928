"""The outputs of one group of sequences, between the engine client and the reader of its stream.

Knows no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendUnavailable,
    PromptTooLong,
    StreamInterrupted,
)
from backends.messages import Output, Rejected, RejectionKind


class Collector:
    """What has come and has not been taken yet. One writer, one reader, one event loop."""

    def __init__(self, request_ids: Iterable[str], max_pending: int) -> None:
        self.unfinished = set(request_ids)
        self._max_pending = max_pending
        self._pending: list[Output] = []
        self._has_output = False  # ever
        self._error: BackendError | None = None
        self._changed = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    @property
    def is_drained(self) -> bool:
        """Everything has come and everything has been taken."""
        return not (self.unfinished or self._pending or self._error)

    def put(self, output: Output) -> None:
        """Add one output; a reader that is too far behind loses its stream."""
        if output.error is not None:
            self.interrupt(output.error)
            return
        self._has_output = True
        self._pending.append(output)
        if output.is_last:
            self.unfinished.discard(output.request_id)
        if len(self._pending) > self._max_pending:
            self._pending.clear()
            self.interrupt(f"the answer was read more than {self._max_pending} tokens too late")
        self._changed.set()

    def interrupt(self, why: str) -> None:
        """End it for a reason that is not the request's."""
        self.fail(StreamInterrupted(why) if self._has_output else BackendUnavailable(why))

    def fail(self, error: BackendError) -> None:
        self._error = self._error or error
        self._changed.set()

    async def take(self) -> list[Output]:
        """All outputs since the last call, at least one; the error once there are none left."""
        while not self._pending:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        pending, self._pending = self._pending, []
        return pending


def error_of(message: Rejected) -> BackendError:
    """A refusal as the seam knows it."""
    match message.kind:
        case RejectionKind.TOO_LONG:
            return PromptTooLong(
                prompt_tokens=message.prompt_tokens,
                max_tokens=message.max_tokens,
                max_total_tokens=message.max_total_tokens,
            )
        case RejectionKind.INVALID_TOKEN_ID:
            return BackendRejected(message.message, param="prompt")
        case RejectionKind.QUEUE_FULL:
            return BackendOverloaded(message.message, retry_after_s=message.retry_after_s)
        case RejectionKind.DUPLICATE:
            return BackendProtocolError(message.message)
        case RejectionKind.OTHER:
            return BackendRejected(message.message)
