"""Reading a request body: bounded in size and time, JSON by its content type. Parses nothing.

Source: RFC 9110 sections 8.3 (content type), 8.4 (content coding) and 15.5.14 (413).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive

from gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType

DISCARD_LIMIT_BYTES = 64 * 1024 * 1024
DISCARD_TIMEOUT_S = 2.0
"""A body that is too large is still read this far, so that a client that sends first and reads
later sees our answer.
"""


class ClientGone(Exception):
    """The connection closed before the body was complete."""


def check_media_type(headers: Mapping[str, str]) -> None:
    """Accept JSON in UTF-8, not compressed.

    Anything a web page may send without asking first (form data, text/plain) is refused.

    Raises:
        UnsupportedMediaType: says what was sent and what to send.
    """
    sent = headers.get("content-type", "")
    kind, _, parameters = sent.partition(";")
    kind = kind.strip().lower()
    if not (
        kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    ):
        raise UnsupportedMediaType(
            f"Content-Type is {sent[:80]!r}; send the body as 'application/json'."
        )
    name, _, charset = parameters.strip().lower().partition("=")
    if name.strip() == "charset" and charset.strip(' "') not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(f"charset {charset[:40]!r} is not supported; send UTF-8.")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise UnsupportedMediaType(
            f"Content-Encoding {coding[:40]!r} is not supported; send the body uncompressed."
        )


async def read_body(
    headers: Mapping[str, str], receive: Receive, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """The whole body.

    Raises:
        BodyTooLarge: by its Content-Length, or as soon as more than the limit has come.
        InvalidRequest: it did not come in time.
        ClientGone: the client left.
    """
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit_bytes:
        if int(declared) <= DISCARD_LIMIT_BYTES:
            await _discard(receive)
        raise _too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            body, is_whole = await _collect(receive, limit_bytes)
    except TimeoutError as error:
        raise InvalidRequest(
            f"The request body did not arrive within {timeout_s:g} seconds."
        ) from error
    if len(body) <= limit_bytes:
        return body
    if not is_whole:
        await _discard(receive)
    raise _too_large(limit_bytes)


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit_bytes} bytes; send a smaller one.")


async def _collect(receive: Receive, limit_bytes: int) -> tuple[bytes, bool]:
    """The body up to the first chunk over the limit, and whether that was all of it."""
    chunks: list[bytes] = []
    size_bytes = 0
    more = True
    while more and size_bytes <= limit_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        size_bytes += len(chunk)
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks), not more


async def _discard(receive: Receive) -> None:
    size_bytes = 0
    try:
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            while size_bytes < DISCARD_LIMIT_BYTES:
                message = await receive()
                size_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
