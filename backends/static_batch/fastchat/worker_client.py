"""A controller's calls to its workers: none blocks the loop, and what goes wrong is classified.

Messages name no address: they may reach a client. The log has it. Source: FastChat 0.2.36, its
worker endpoints. Knows no registry and no requests of ours.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Generator, Mapping

import httpx
import orjson

from backends.errors import (
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
)
from backends.static_batch.fastchat.controller_protocol import (
    BadJson,
    ConversationJson,
    ConversationReply,
    FrameSplitter,
    ModelDetailsJson,
    StatusJson,
    TokenCountJson,
    WireType,
    parse,
)
from backends.static_batch.fastchat.dispatch import WorkerStatus

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
STATUS_TIMEOUT_S = 5.0  # FastChat's


class WorkerGone(BackendUnavailable):
    """Nobody listens at the worker's address: nothing was sent, so another worker may be asked."""


class WorkerClient:
    """Talks to any worker by its address. Made inside a running loop, closed once."""

    def __init__(self, timeout_s: float) -> None:
        """timeout_s: for an answer, and between two pieces of one."""
        self._timeout_s = timeout_s
        # No connection is kept: a worker closes an idle one as it likes, and a request that meets
        # the close half-way fails. A call over a new one took 2 ms, both ends on one busy core;
        # over a kept one 44 ms, as TCP waits for an acknowledgement between headers and body.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._http = httpx.AsyncClient(
            limits=limits, trust_env=False, headers={"accept-encoding": "identity"}
        )

    async def aclose(self) -> None:
        """End every call."""
        await self._http.aclose()

    async def status(self, address: str) -> WorkerStatus:
        """Raises: BackendError."""
        reply = await self._ask(StatusJson, address, "/worker_get_status", {}, STATUS_TIMEOUT_S)
        return reply.status()

    async def conversation(self, address: str, model: str) -> ConversationJson:
        """The template of the model's chats. Raises: BackendError."""
        body = {"model": model}
        reply = await self._ask(ConversationReply, address, "/worker_get_conv_template", body)
        return reply.conv

    async def context_length(self, address: str, model: str) -> int | None:
        """In tokens, if the worker knows. Raises: BackendError."""
        reply = await self._ask(ModelDetailsJson, address, "/model_details", {"model": model})
        return reply.context_length

    async def count_tokens(self, address: str, model: str, prompt: str) -> int:
        """0 from a worker without a tokenizer. Raises: BackendError."""
        body = {"model": model, "prompt": prompt}
        return (await self._ask(TokenCountJson, address, "/count_token", body)).count

    async def stream(self, address: str, params: bytes) -> AsyncGenerator[bytes, None]:
        """The frames of one answer, without their end. Closing the generator closes the socket.

        Raises:
            BackendError: as ever; nothing is known of the frames' content.
        """
        splitter = FrameSplitter()
        url = _url(address, "/worker_generate_stream")
        headers = {"content-type": "application/json"}
        with _classified(address):
            async with self._http.stream(
                "POST", url, content=params, headers=headers, timeout=self._patience()
            ) as response:
                _check_status(response, address)
                async for chunk in response.aiter_raw():
                    for frame in splitter.push(chunk):
                        yield frame
            if splitter.has_begun_a_frame:
                raise BadJson("the answer ended within a frame")

    async def _ask(
        self,
        kind: type[WireType],
        address: str,
        path: str,
        body: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> WireType:
        with _classified(address):
            response = await self._http.post(
                _url(address, path),
                content=orjson.dumps(body),
                headers={"content-type": "application/json"},
                timeout=self._patience(timeout_s),
            )
            _check_status(response, address)
            return parse(kind, response.content)

    def _patience(self, timeout_s: float | None = None) -> httpx.Timeout:
        timeout_s = timeout_s or self._timeout_s
        return httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s))


def _url(address: str, path: str) -> str:
    return address.rstrip("/") + path


def _check_status(response: httpx.Response, address: str) -> None:
    status = response.status_code
    if status == 200:
        return
    logger.warning("worker %s: HTTP status %d", address, status)
    if status in (429, 503):
        raise BackendOverloaded("the worker takes no more requests")
    if status >= 500:
        raise BackendUnavailable(f"the worker failed with HTTP status {status}")
    raise BackendProtocolError(f"the worker answered with HTTP status {status}")


@contextlib.contextmanager
def _classified(address: str) -> Generator[None]:
    """Turn what httpx and the parser raise into backend errors."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        logger.warning("worker %s cannot be reached: %r", address, error)
        raise WorkerGone("the worker cannot be reached") from error
    except httpx.TimeoutException as error:
        logger.warning("worker %s said nothing in time: %r", address, error)
        raise BackendTimeout("the worker said nothing in time") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        logger.warning("worker %s: %r", address, error)
        raise BackendUnavailable("the connection to the worker broke") from error
    except BadJson as error:
        logger.warning("worker %s does not speak FastChat's protocol: %s", address, error)
        raise BackendProtocolError(
            f"the worker does not speak FastChat's protocol: {error}"
        ) from error
