"""FastChat's controller as an ASGI application: the same paths and JSON, and nothing that blocks.

Heartbeats are answered while a worker that was called says nothing (FastChat calls workers from
inside the loop, and hears nobody meanwhile). What differs is in `docs/fastchat.md`: bodies are
bounded and must be JSON by their media type, which keeps a web page in a browser on this machine
from registering workers; what is wrong is answered with a status of 4xx and FastChat's error
object.

It has no keys, as FastChat's has none: who reaches the port may use it. Source: FastChat 0.2.36.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backends.errors import BackendError
from backends.static_batch.fastchat.controller_protocol import (
    FRAME_END,
    BadJson,
    HeartBeatJson,
    ModelJson,
    RegisterJson,
    WireType,
    error_frame,
    parse,
)
from backends.static_batch.fastchat.dispatch import (
    Registry,
    Worker,
    WorkerStatus,
    model_names,
    total,
)
from backends.static_batch.fastchat.error_codes import ErrorCode
from backends.static_batch.fastchat.worker_address import AddressRule, BadWorkerAddress
from backends.static_batch.fastchat.worker_client import WorkerClient

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 24  # prompts, and images in base64


class Controller:
    """Who the workers are, by what they say themselves; one for any number of models."""

    def __init__(
        self,
        registry: Registry,
        client: WorkerClient,
        addresses: AddressRule,
        *,
        clock: Callable[[], float],
        draw: Callable[[], float],
    ) -> None:
        """clock: seconds, monotonic. draw: a random number in [0, 1)."""
        self._registry = registry
        self._client = client
        self._addresses = addresses
        self._clock = clock
        self._draw = draw

    @property
    def client(self) -> WorkerClient:
        return self._client

    def workers(self) -> tuple[Worker, ...]:
        """All that are there now."""
        return self._registry.workers(self._clock())

    def pick(self, model: str, *, without: Collection[str] = ()) -> Worker | None:
        """The worker for the next request, by the dispatch method."""
        return self._registry.pick(model, self._clock(), self._draw(), without=without)

    def build_app(self) -> Starlette:
        """The application; the caller serves it, and closes the client."""
        posts = {
            "/register_worker": self._register_worker,
            "/refresh_all_workers": self._refresh_all_workers,
            "/list_models": self._list_models,
            "/list_multimodal_models": self._list_multimodal_models,
            "/list_language_models": self._list_language_models,
            "/get_worker_address": self._get_worker_address,
            "/receive_heart_beat": self._receive_heart_beat,
            "/worker_generate_stream": self._worker_generate_stream,
            "/worker_get_status": self._worker_get_status,
        }
        return Starlette(
            routes=[
                *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
                Route("/test_connection", _test_connection),
            ],
            exception_handlers={HTTPException: _refuse, ClientDisconnect: _gone},
        )

    async def _register_worker(self, request: Request) -> Response:
        body = await _read(RegisterJson, request)
        try:
            self._addresses.check(body.worker_name)
            if body.worker_status is None:
                status = await self._client.status(body.worker_name)
            else:
                status = body.worker_status.status()
        except BadWorkerAddress as error:
            raise HTTPException(400, str(error)) from error
        except BackendError as error:
            message = f"{body.worker_name}/worker_get_status: {error.message}"
            raise HTTPException(400, message) from error
        self._registry.register(
            body.worker_name,
            status,
            self._clock(),
            check_heart_beat=body.check_heart_beat,
            multimodal=body.multimodal,
        )
        names = ", ".join(status.model_names)
        logger.info("worker %s is registered, with %s", body.worker_name, names)
        return JSONResponse(None)

    async def _refresh_all_workers(self, request: Request) -> Response:
        for worker, status in await self._ask_all():
            self._registry.refresh(worker, status, self._clock())
        return JSONResponse(None)

    async def _list_models(self, request: Request) -> Response:
        return _models(self.workers())

    async def _list_multimodal_models(self, request: Request) -> Response:
        return _models([worker for worker in self.workers() if worker.multimodal])

    async def _list_language_models(self, request: Request) -> Response:
        return _models([worker for worker in self.workers() if not worker.multimodal])

    async def _get_worker_address(self, request: Request) -> Response:
        worker = self.pick((await _read(ModelJson, request)).model)
        return JSONResponse({"address": "" if worker is None else worker.address})

    async def _receive_heart_beat(self, request: Request) -> Response:
        body = await _read(HeartBeatJson, request)
        exist = self._registry.receive_heart_beat(
            body.worker_name, body.queue_length, self._clock()
        )
        return JSONResponse({"exist": exist})

    async def _worker_generate_stream(self, request: Request) -> Response:
        params = await _read_body(request)
        return StreamingResponse(self._forward(_parse(ModelJson, params).model, params))

    async def _worker_get_status(self, request: Request) -> Response:
        statuses = [status for _, status in await self._ask_all() if status is not None]
        return JSONResponse(asdict(total(statuses)))

    async def _forward(self, model: str, params: bytes) -> AsyncGenerator[bytes, None]:
        """A worker's frames as they are, and one of ours if it fails."""
        worker = self.pick(model)
        if worker is None:
            yield error_frame(ErrorCode.NO_WORKER, f"no worker serves {model!r}")
            return
        try:
            async with aclosing(self._client.stream(worker.address, params)) as frames:
                async for frame in frames:
                    yield frame + FRAME_END
        except BackendError as error:
            yield error_frame(ErrorCode.WORKER_TIMEOUT, error.message)

    async def _ask_all(self) -> Sequence[tuple[Worker, WorkerStatus | None]]:
        """Every worker with its own word of now, all asked at once; None: it gave none."""
        workers = self.workers()
        return list(zip(workers, await asyncio.gather(*map(self._ask, workers)), strict=True))

    async def _ask(self, worker: Worker) -> WorkerStatus | None:
        try:
            return await self._client.status(worker.address)
        except BackendError as error:
            logger.warning("worker %s gives no status: %s", worker.address, error.message)
            return None


async def _test_connection(request: Request) -> Response:
    return JSONResponse("success")


def _models(workers: Sequence[Worker]) -> Response:
    return JSONResponse({"models": model_names(workers)})


async def _read(kind: type[WireType], request: Request) -> WireType:
    return _parse(kind, await _read_body(request))


def _parse(kind: type[WireType], body: bytes) -> WireType:
    try:
        return parse(kind, body)
    except BadJson as error:
        raise HTTPException(400, str(error)) from error


async def _read_body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "send JSON with `Content-Type: application/json`")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes")
    return bytes(body)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"text": error.detail, "error_code": int(ErrorCode.VALIDATION_TYPE_ERROR)},
        status_code=error.status_code,
        headers=error.headers,
    )


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it
