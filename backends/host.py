"""An engine in a process of its own: `python -m backends.host --socket PATH --engine NAME`.

Runs anything with add, abort and step behind a ROUTER on a Unix socket, for any number of clients.
One thread and one loop: take what has come, run a step, send each client what the step did for it.
Knows no text and no model; `backends.client` is the other side, `backends.messages` the words
between them.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import math
import os
import secrets
import signal
import sys
import time
from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import cast

import msgspec
import zmq

from backends.host_socket import bound_socket
from backends.messages import (
    PROTOCOL_VERSION,
    Abort,
    Add,
    Heartbeat,
    Hello,
    HostMessage,
    Output,
    Outputs,
    Rejected,
    RejectionKind,
    Welcome,
    WrongVersion,
    decode_from_client,
    encode,
    max_total_tokens,
)
from backends.spec import BackendConfigError
from native_engine.errors import (
    DuplicateRequest,
    EngineError,
    InvalidTokenId,
    QueueFull,
    RequestTooLong,
)
from native_engine.types import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    SequenceOutput,
    SteppedEngine,
)

logger = logging.getLogger(__name__)

ENGINES = {
    "native": "backends.native_process:open_engine",
    "priority_batcher": "backends.priority_batcher.process:open_engine",
    "static_batch": "backends.static_batch.process:open_engine",
}
"""Name -> `module:function`, imported only when asked for. The function takes the options."""

HEARTBEAT_S = 0.5

_KINDS: Mapping[type[EngineError], RejectionKind] = {
    RequestTooLong: RejectionKind.TOO_LONG,
    InvalidTokenId: RejectionKind.INVALID_TOKEN_ID,
    QueueFull: RejectionKind.QUEUE_FULL,
    DuplicateRequest: RejectionKind.DUPLICATE,
}


@dataclass(slots=True, eq=False)
class _Client:
    """One connection. A client that connects again is a new one, with requests of its own."""

    identity: bytes
    engine_ids: dict[str, str] = field(default_factory=dict[str, str])  # by the client's own id


class EngineHost:
    """The loop between one engine and its clients. Owns neither the engine nor the socket."""

    def __init__(
        self,
        engine: SteppedEngine,
        socket: zmq.Socket[bytes],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Without this a message for a client that has gone would be dropped in silence.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._engine = engine
        self._socket = socket
        self._clock = clock
        self._instance = secrets.token_hex(8)
        self._clients: dict[bytes, _Client] = {}
        self._owners: dict[str, tuple[_Client, str]] = {}  # by engine id: whose, and its own id
        self._num_requests = 0
        self._next_heartbeat_s = clock()

    def run(self) -> None:
        """Serve until an exception, a signal's SystemExit included, ends it.

        Raises:
            Exception: whatever `step` raised. Every client with work has been told.
        """
        while True:
            self._receive()
            try:
                outputs = [] if self._engine.idle_s() else self._engine.step()
            except Exception as error:
                self._fail_all(f"the engine broke: {type(error).__name__}: {error}")
                raise
            self._deliver(outputs)
            self._beat()

    def _receive(self) -> None:
        """Handle all that has come. With nothing else to do, wait for it, or for a heartbeat."""
        idle_s = self._engine.idle_s()
        if idle_s:
            idle_s = min(idle_s, self._next_heartbeat_s - self._clock())
            self._socket.poll(max(0, math.ceil(idle_s * 1000)))
        while True:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._handle(identity, b"".join(frames))

    def _handle(self, identity: bytes, frame: bytes) -> None:
        try:
            message = decode_from_client(frame)
        except msgspec.MsgspecError as error:
            logger.warning("ignored %d bytes that are no message: %s", len(frame), error)
            return
        client = self._clients.get(identity)
        match message:
            case Hello():
                self._greet(identity, message)
            case Add() if client is not None:
                self._add(client, message.requests)
            case Abort() if client is not None:
                for request_id in message.request_ids:
                    self._abort(client, request_id)
            case Add() | Abort():
                # Meant for an engine process that has ended; its client knows it has.
                logger.info("ignored a request that came before any hello")

    def _greet(self, identity: bytes, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            self._send(_Client(identity), WrongVersion())
            return
        client = self._clients.setdefault(identity, _Client(identity))
        self._send(client, Welcome(self._engine.info, self._instance, self._engine.stats()))

    def _add(self, client: _Client, requests: tuple[EngineRequest, ...]) -> None:
        added: dict[str, str] = {}
        known = ChainMap(added, client.engine_ids)
        for request in requests:
            self._num_requests += 1
            engine_id = f"{self._num_requests}:{request.request_id}"
            try:
                if request.request_id in known:
                    raise DuplicateRequest(f"request {request.request_id} is here already")
                sibling = known.get(request.fork_of) if request.fork_of is not None else None
                self._engine.add(replace(request, request_id=engine_id, fork_of=sibling))
            except EngineError as error:
                for taken in added.values():
                    self._engine.abort(taken)
                self._send(client, _rejected(error, request, requests, self._engine.info))
                return
            added[request.request_id] = engine_id
        client.engine_ids.update(added)
        self._owners.update({engine_id: (client, own) for own, engine_id in added.items()})

    def _abort(self, client: _Client, request_id: str) -> None:
        engine_id = client.engine_ids.pop(request_id, None)
        if engine_id is not None:
            del self._owners[engine_id]
            self._engine.abort(engine_id)

    def _deliver(self, outputs: Sequence[SequenceOutput]) -> None:
        if not outputs:
            return
        by_client: defaultdict[bytes, list[Output]] = defaultdict(list)
        for output in outputs:
            client, request_id = self._owners[output.request_id]
            sent = Output.of(output, request_id)
            by_client[client.identity].append(sent)
            if sent.is_last:
                del self._owners[output.request_id]
                del client.engine_ids[request_id]
        stats = self._engine.stats()
        for identity, batch in by_client.items():
            self._send(self._clients[identity], Outputs(batch, stats))

    def _beat(self) -> None:
        """Also what finds out that a client with nothing but waiting requests has gone."""
        now_s = self._clock()
        if now_s < self._next_heartbeat_s:
            return
        self._next_heartbeat_s = now_s + HEARTBEAT_S
        heartbeat = Heartbeat(self._engine.stats())
        for client in list(self._clients.values()):
            self._send(client, heartbeat)

    def _fail_all(self, message: str) -> None:
        for client in list(self._clients.values()):
            if client.engine_ids:
                failed = [Output(request_id, error=message) for request_id in client.engine_ids]
                self._send(client, Outputs(failed, EngineStats()))

    def _send(self, client: _Client, message: HostMessage) -> None:
        try:
            self._socket.send_multipart([client.identity, encode(message)], zmq.DONTWAIT)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(client)

    def _forget(self, client: _Client) -> None:
        logger.info("a client has gone with %d requests", len(client.engine_ids))
        self._clients.pop(client.identity, None)
        for request_id in list(client.engine_ids):
            self._abort(client, request_id)


def _rejected(
    error: EngineError,
    request: EngineRequest,
    requests: tuple[EngineRequest, ...],
    engine: EngineInfo,
) -> Rejected:
    return Rejected(
        request_ids=tuple(one.request_id for one in requests),
        kind=_KINDS.get(type(error), RejectionKind.OTHER),
        message=str(error),
        prompt_tokens=len(request.prompt_token_ids),
        max_tokens=request.sampling.max_tokens,
        max_total_tokens=max_total_tokens(engine),
        retry_after_s=error.retry_after_s if isinstance(error, QueueFull) else None,
    )


def load_engine(engine: str, options: Mapping[str, object]) -> SteppedEngine:
    """Build an engine by its name in `ENGINES` or by `module:function`.

    Raises:
        BackendConfigError: there is no such engine, or not with these options, this model or on
        this machine.
    """
    module, colon, function = ENGINES.get(engine, engine).partition(":")
    if not colon:
        raise BackendConfigError(
            f"no engine is named {engine!r}; there are {', '.join(ENGINES)}, or module:function"
        )
    factory = cast(
        Callable[[Mapping[str, object]], SteppedEngine],
        getattr(importlib.import_module(module), function),
    )
    try:
        return factory(options)
    except EngineError as error:
        raise BackendConfigError(str(error)) from error


def _exit(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)  # wherever it stands: there is nothing to save, and the clients see it end


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM (0), a broken engine (1) or a hopeless configuration (78, EX_CONFIG)."""
    parser = argparse.ArgumentParser(prog="backends.host", description="Run one engine.")
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket")
    parser.add_argument("--engine", required=True, help="a known name, or module:function")
    parser.add_argument("--options", type=json.loads, default={}, help="the engine's own, as JSON")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    signal.signal(signal.SIGTERM, _exit)
    try:
        # Bound before the model is loaded: a path in use shows at once, and clients can queue up.
        with bound_socket(parsed.socket) as socket:
            engine = load_engine(parsed.engine, parsed.options)
            gc.collect()
            gc.freeze()  # weights and modules live as long as the process: never scan them again
            logger.info("serving %s on %s", engine.info.description, parsed.socket)
            EngineHost(engine, socket).run()
    except BackendConfigError as error:
        logger.error("%s", error)
        return os.EX_CONFIG
    except Exception:
        logger.exception("the engine process ends")
    return 1


if __name__ == "__main__":
    sys.exit(main())
