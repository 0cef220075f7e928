"""A FastChat worker over any backend that can count tokens.

A request waits for one of `limit_concurrency` slots, and holds it until its answer has been sent,
has failed, or has lost its client; a slot is given back on each of these ways. A client that leaves
closes the backend's generator, which is the abort. Nothing here computes: status and heartbeats
never wait for a generation. Answers come with status 200; what is wrong is in their `error_code`.

Knows no engine and no controller (`heartbeat` does), and no tenants: FastChat has none.
Source: FastChat 0.2.36, `serve/base_model_worker.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from backends.base import Backend, BackendState, Tokenizing
from backends.errors import BackendError
from backends.static_batch.fastchat.controller_protocol import ConversationJson
from backends.static_batch.fastchat.error_codes import ErrorCode
from backends.static_batch.fastchat.worker_frames import AnswerFrames
from backends.static_batch.fastchat.worker_protocol import (
    BODY_LIMIT_BYTES,
    CountBody,
    Frame,
    GenerateParams,
    WorkerError,
    encode_frame,
    encode_json,
    error_frame,
    num_kept,
    read_body,
    read_generate_params,
)
from backends.types import TextPrompt

logger = logging.getLogger(__name__)


class TokenizingBackend(Backend, Tokenizing, Protocol):
    """What a worker needs: FastChat asks for the length of a prompt before each request."""


class Worker:
    """The model's side: what is asked, by how many at once, and what is answered."""

    def __init__(
        self,
        backend: TokenizingBackend,
        *,
        model_names: Sequence[str],
        conversation: ConversationJson,
        limit_concurrency: int = 5,
        stream_interval: int = 2,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """conversation: how the API server writes a chat as one prompt; see `templates`."""
        self.model_names = tuple(model_names)
        self.conversation = conversation
        self.queue_length = 0  # running and waiting
        self._backend = backend
        self._semaphore = asyncio.Semaphore(limit_concurrency)
        self._stream_interval = stream_interval
        self._draw_seed = draw_seed
        self._serials = itertools.count()
        self._context_length = 0  # the last known: an engine that starts again does not say

    async def frames(self, body: bytes) -> AsyncGenerator[Frame, None]:
        """The answer to a generate request, growing; or an error, which is the last frame."""
        try:
            params = read_generate_params(body, draw_seed=self._draw_seed)
            self._check_model(params.model)
            if params.unknown:
                logger.info("nothing reads %.200s", ", ".join(map(repr, params.unknown)))
            async with self._slot(), aclosing(self._answer(params)) as frames:
                async for frame in frames:
                    yield frame
        except (WorkerError, BackendError) as error:
            yield error_frame(error)
        except Exception:  # the request's door: a bug of ours ends one request, not the worker
            logger.exception("a request failed")
            yield error_frame(
                WorkerError(ErrorCode.INTERNAL_ERROR, "the worker failed; see its log")
            )

    async def last_frame(self, body: bytes) -> Frame:
        """The whole answer, or the error."""
        last: Frame = {}
        async with aclosing(self.frames(body)) as frames:
            async for frame in frames:
                last = frame
        return last

    async def count_tokens(self, body: bytes) -> Frame:
        """How many tokens a prompt has, those included that the tokenizer puts in front."""
        asked = read_body(CountBody, body)
        self._check_model(asked.model or "")
        count = await self._backend.count_tokens((TextPrompt(text=asked.prompt),))
        return {"count": count, "error_code": 0}

    async def context_length(self) -> int:
        """Tokens of prompt and answer together. Raises WorkerError: nobody knows yet."""
        self._context_length = (await self._backend.status()).max_model_len or self._context_length
        if not self._context_length:
            raise WorkerError(ErrorCode.NO_WORKER, "the engine is still starting; ask again")
        return self._context_length

    async def is_ready(self) -> bool:
        """Whether the engine can be sent work."""
        return (await self._backend.status()).state is BackendState.READY

    def status(self) -> Frame:
        """What a controller chooses by."""
        return {
            "model_names": list(self.model_names),
            "speed": 1,
            "queue_length": self.queue_length,
        }

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None, None]:
        self.queue_length += 1
        try:
            async with self._semaphore:
                yield
        finally:
            self.queue_length -= 1

    async def _answer(self, params: GenerateParams) -> AsyncGenerator[Frame, None]:
        whole = TextPrompt(text=params.prompt)
        prompt_tokens = await self._backend.count_tokens((whole,))
        context_length = await self.context_length()
        kept = num_kept(prompt_tokens, params.max_new_tokens, context_length)
        request = params.request(
            f"fastchat-{next(self._serials)}",
            truncate=kept if kept < prompt_tokens else 0,
            wants_the_rest=prompt_tokens + params.max_new_tokens == context_length,
        )
        start = 0
        if params.echo and kept < prompt_tokens:
            start = (await self._backend.encode(whole))[-kept].start
        answer = AnswerFrames(
            params,
            echoed=params.prompt[start:] if params.echo else "",
            prompt_tokens=kept,
            stream_interval=self._stream_interval,
        )
        async with aclosing(self._backend.generate(request)) as events:
            async for event in events:
                for frame in answer.push(event):
                    yield frame

    def _check_model(self, name: str) -> None:
        if name and name not in self.model_names:
            raise WorkerError(
                ErrorCode.INVALID_MODEL,
                f"this worker has no model {name!r}; it has {', '.join(self.model_names)}",
            )


def build_app(worker: Worker) -> Starlette:
    """The seven routes, as FastChat's controller and API server call them."""

    async def stream(body: bytes, send: Send) -> None:
        await send(_head(b"application/octet-stream"))
        async with aclosing(worker.frames(body)) as frames:
            async for frame in frames:
                data = encode_frame(frame)
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def embeddings(_: bytes) -> Frame:
        raise WorkerError(
            ErrorCode.INVALID_MODEL,
            f"{', '.join(worker.model_names)} gives no embeddings; ask a model that does",
        )

    async def status(_: bytes) -> Frame:
        return worker.status()

    async def conversation(_: bytes) -> Frame:
        return {"conv": worker.conversation.model_dump()}

    async def model_details(_: bytes) -> Frame:
        return {"context_length": await worker.context_length()}

    answers: dict[str, _Answer] = {
        "/worker_generate_stream": stream,
        "/worker_generate": _whole(worker.last_frame),
        "/worker_get_embeddings": _whole(embeddings),
        "/worker_get_status": _whole(status),
        "/count_token": _whole(worker.count_tokens),
        "/worker_get_conv_template": _whole(conversation),
        "/model_details": _whole(model_details),
    }
    return Starlette(
        routes=[
            Route(path, _Endpoint(answer), methods=["POST"]) for path, answer in answers.items()
        ]
    )


_Answer = Callable[[bytes, Send], Coroutine[None, None, None]]
"""Sends the answer to a request's body."""


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An ASGI application for one path: reads the body, and answers while the client is there."""

    answer: _Answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_body(receive)
        if body is None:
            return
        if body and not _is_json(Headers(scope=scope)):
            # a web page open in a browser here can send anything else without asking first
            refusal = PlainTextResponse("send the body as 'application/json'\n", status_code=415)
            await refusal(scope, receive, send)
            return
        await _while_connected(self.answer(body, send), receive)


def _is_json(headers: Headers) -> bool:
    media_type, _, _ = headers.get("content-type", "").partition(";")
    return media_type.strip().lower() == "application/json"


def _whole(answer: Callable[[bytes], Awaitable[Frame]]) -> _Answer:
    """Sends one JSON object."""

    async def send_whole(body: bytes, send: Send) -> None:
        try:
            frame = await answer(body)
        except (WorkerError, BackendError) as error:
            frame = error_frame(error)
        await send(_head(b"application/json"))
        await send({"type": "http.response.body", "body": encode_json(frame)})

    return send_whole


def _head(media_type: bytes) -> Message:
    headers = [(b"content-type", media_type)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


async def _read_body(receive: Receive) -> bytes | None:
    """The body; None if the client left. What is over the limit is read, and not kept: whoever
    parses the rest refuses it.
    """
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        del body[BODY_LIMIT_BYTES + 1 :]
        more = message.get("more_body", False)
    return bytes(body)


async def _while_connected(work: Coroutine[None, None, None], receive: Receive) -> None:
    """Run `work`, and cancel it if the client goes first. Returns after it has ended."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        leaving = tasks.create_task(_disconnected(receive))
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
