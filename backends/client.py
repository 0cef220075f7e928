"""The gateway's side of one engine process: requests out, outputs in, over `backends.messages`.

However the engine process ends, nobody who waits for it waits on: every stream ends with one error
at once, and the client connects by itself to the process that takes its place. Knows token ids
only, no text; starts no processes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from backends.base import BackendState
from backends.collector import Collector, error_of
from backends.errors import BackendProtocolError, BackendUnavailable
from backends.messages import (
    PROTOCOL_VERSION,
    Abort,
    Add,
    ClientMessage,
    Heartbeat,
    Hello,
    HostMessage,
    Output,
    Outputs,
    Rejected,
    Welcome,
    WrongVersion,
    decode_from_host,
    encode,
)
from native_engine.types import EngineInfo, EngineRequest, EngineStats

logger = logging.getLogger(__name__)

RECONNECT_MS = 50  # a refused connect to a Unix socket costs 20 us
LINGER_MS = 200  # for the last aborts to leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits for what."""

    start_timeout_s: float = 30.0  # a request, for an engine that is starting
    restart_timeout_s: float = 60.0  # after a death, until it no longer counts as starting
    silence_timeout_s: float = 15.0  # for any word; a step on a busy CPU can take seconds


class EngineClient:
    """One engine process as seen from a gateway. Made inside a running loop, closed once."""

    def __init__(
        self,
        socket_path: Path,
        *,
        patience: Patience | None = None,
        max_pending: int = 8192,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_pending` is how many outputs a stream's reader may lag behind."""
        self._patience = patience or Patience()
        self._max_pending = max_pending
        self._clock = clock
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # Not zmq.IMMEDIATE: it throws away what has come and is not read yet when a peer goes, an
        # engine's last words among it. What is sent to a process that has just ended reaches the
        # next one before our Hello, and is ignored there.
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._socket.connect(f"ipc://{socket_path}")
        self._collectors: dict[str, Collector] = {}  # by the request id of each unfinished sequence
        self._engine: EngineInfo | None = None  # None: not ready
        self._instance = ""
        self._stats = EngineStats()
        self._ready = asyncio.Event()
        self._closed = False
        self._lost_at_s = self._heard_at_s = clock()
        self._detail = "the engine process has not started yet"
        self._task = asyncio.create_task(self._run(), name=f"engine client {socket_path}")

    @property
    def state(self) -> BackendState:
        if self._closed:
            return BackendState.DOWN
        if self._engine is not None:
            return BackendState.READY
        is_new = not self._instance
        if is_new or self._clock() - self._lost_at_s < self._patience.restart_timeout_s:
            return BackendState.STARTING
        return BackendState.DOWN

    @property
    def detail(self) -> str:
        """Why it is not ready; empty if it is."""
        return self._detail

    @property
    def stats(self) -> EngineStats:
        """The last the engine said."""
        return self._stats

    @property
    def engine(self) -> EngineInfo | None:
        """What is known of the engine; None unless it is ready."""
        return self._engine

    @property
    def num_pending(self) -> int:
        """Sequences that have not ended."""
        return len(self._collectors)

    async def until_ready(self) -> EngineInfo:
        """The engine, after a bounded wait if it is starting.

        Raises:
            BackendUnavailable: it is down, or took too long.
        """
        try:
            async with asyncio.timeout(self._patience.start_timeout_s):
                while self._engine is None:
                    if self.state is BackendState.DOWN:
                        raise BackendUnavailable(self._detail)
                    await self._ready.wait()
        except TimeoutError:
            raise BackendUnavailable(
                f"{self._detail}; waited {self._patience.start_timeout_s:g} s for it"
            ) from None
        return self._engine

    async def stream(self, requests: Sequence[EngineRequest]) -> AsyncGenerator[list[Output], None]:
        """Run sequences that belong together; yields what has come since the last time, in order
        of arrival, until each has ended. Closing it aborts what is left. No request id may ever be
        used again: outputs of its first use may still be on their way.

        Raises:
            BackendError: one of the sequences was refused or ended with an error, or the engine
            process died. The others are aborted.
        """
        await self.until_ready()
        ids = [request.request_id for request in requests]
        if not self._collectors.keys().isdisjoint(ids):
            raise BackendProtocolError(f"a request {ids[0]} is running already")
        collector = Collector(ids, self._max_pending)
        self._collectors.update(dict.fromkeys(ids, collector))
        try:
            self._send(Add(tuple(requests)))
            while not collector.is_drained:
                yield await collector.take()
        finally:
            self._drop(ids)

    def abort(self, request_id: str) -> None:
        """End one sequence of a stream early: no more of it is wanted, its siblings go on."""
        collector = self._collectors.get(request_id)
        if collector is not None:
            collector.unfinished.discard(request_id)
            self._drop([request_id])

    async def aclose(self) -> None:
        """End every stream with an error, then let go of the connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._lose("the backend is closed")
        self._ready.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        await asyncio.to_thread(self._context.term)  # waits for LINGER_MS at most

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._receive())
                group.create_task(self._watch_connection())
                group.create_task(self._watch_silence())
        except Exception:
            logger.exception("the engine client broke; no request can be served any more")
            self._lose("the gateway's side of the engine broke; its log says why")

    async def _receive(self) -> None:
        while True:
            frame = await self._socket.recv()
            self._heard_at_s = self._clock()
            self._handle(frame)

    async def _watch_silence(self) -> None:
        silence_s = self._patience.silence_timeout_s
        while True:
            await asyncio.sleep(silence_s / 4)
            if self._engine is not None and self._clock() - self._heard_at_s > silence_s:
                self._start_over(f"the engine process said nothing for {silence_s:g} s")

    async def _watch_connection(self) -> None:
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._send(Hello())
            else:
                await self._hear_last_words()
                self._lose("the engine process has ended")

    async def _hear_last_words(self) -> None:
        """Let `_receive` handle all that was sent before the end: ZeroMQ hands it over before it
        tells of the end.
        """
        while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        # A frame that has just been taken resolves a future; its reader runs a turn later.
        for _ in range(2):
            await asyncio.sleep(0)

    def _handle(self, frame: bytes) -> None:
        try:
            message = decode_from_host(frame)
        except msgspec.MsgspecError as error:
            logger.error("the engine sent %d bytes that are no message: %s", len(frame), error)
            self._start_over("the engine process does not speak our protocol")
        else:
            self._dispatch(message)

    def _dispatch(self, message: HostMessage) -> None:
        match message:
            case Outputs():
                self._stats = message.stats
                for output in message.outputs:
                    self._pass_on(output)
            case Heartbeat():
                self._stats = message.stats
            case Rejected():
                self._reject(message)
            case Welcome():
                self._welcome(message)
            case WrongVersion():
                self._detail = (
                    f"the engine process speaks version {message.version} of the protocol and "
                    f"this gateway {PROTOCOL_VERSION}; restart the older one"
                )
                logger.error("%s", self._detail)

    def _welcome(self, message: Welcome) -> None:
        if self._instance != message.instance:
            self._lose("the engine process was replaced by another")  # should nobody have said so
            logger.info("connected to %s", message.engine.description)
        self._engine, self._instance = message.engine, message.instance
        self._stats, self._detail = message.stats, ""
        self._ready.set()

    def _pass_on(self, output: Output) -> None:
        collector = self._collectors.get(output.request_id)
        if collector is None:
            return  # aborted just now: the two messages crossed
        if output.is_last:
            del self._collectors[output.request_id]
        collector.put(output)
        if collector.has_failed:
            self._drop(collector.unfinished)

    def _reject(self, message: Rejected) -> None:
        for request_id in message.request_ids:
            collector = self._collectors.pop(request_id, None)
            if collector is not None:
                collector.fail(error_of(message))

    def _start_over(self, why: str) -> None:
        """Give up what was asked for; should the engine be well after all, a Welcome will come."""
        self._lose(why)
        self._send(Hello())

    def _lose(self, why: str) -> None:
        """The engine is gone, or as good as gone, and with it all that it was asked for."""
        self._engine = None
        self._stats = EngineStats()
        self._ready.clear()
        self._lost_at_s = self._clock()
        self._detail = why
        if not self._collectors:
            return
        logger.warning("%s; %d sequences are lost", why, len(self._collectors))
        for collector in set(self._collectors.values()):
            collector.interrupt(why)
        self._drop(tuple(self._collectors))

    def _drop(self, request_ids: Iterable[str]) -> None:
        """Forget these, and have the engine forget those it still works on."""
        left = tuple(one for one in request_ids if self._collectors.pop(one, None) is not None)
        if left:
            self._send(Abort(left))

    def _send(self, message: ClientMessage) -> None:
        """At once: without a high-water mark nothing makes it wait."""
        asyncio.ensure_future(self._socket.send(encode(message), zmq.DONTWAIT)).result()
