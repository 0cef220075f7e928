"""Bodies: bounded in size and time, and JSON by their own word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.body import ClientGone, check_media_type, read_body
from gateway.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType

Receive = Callable[[], Awaitable[Any]]


def arriving(*chunks: bytes, ends: bool = True) -> Receive:
    """A connection on which these chunks come, and then nothing, or the end of the body."""
    left = list(chunks)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left) or not ends}

    return receive


async def read(receive: Receive, headers: dict[str, str] | None = None, limit: int = 10) -> bytes:
    return await read_body(headers or {}, receive, limit_bytes=limit, timeout_s=0.05)


async def test_joins_what_came_in_pieces() -> None:
    assert await read(arriving(b"ab", b"", b"cd")) == b"abcd"


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert await read(arriving(b"x" * 10)) == b"x" * 10


async def test_one_byte_more_is_refused() -> None:
    """I-BODY-LIMIT: by counting, since nothing was declared."""
    with pytest.raises(BodyTooLarge):
        await read(arriving(b"x" * 10, b"x"))


async def test_a_declared_length_is_refused_before_a_byte_has_come() -> None:
    """I-BODY-LIMIT: ten gigabytes that will never be sent."""
    with pytest.raises(BodyTooLarge):
        await read(arriving(), {"content-length": str(10 * 2**30)})


async def test_a_body_that_does_not_come_is_given_up() -> None:
    """I-BODY-LIMIT: one byte, and then silence."""
    with pytest.raises(InvalidRequest, match="within"):
        await read(arriving(b"x", ends=False))


async def test_a_client_that_leaves_in_the_middle_is_gone() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read(receive)


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/vnd.api+json",
    ],
)
def test_takes_json(kind: str) -> None:
    """I-CONTENT-TYPE."""
    check_media_type({"content-type": kind})


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "text/json",
    ],
)
def test_refuses_everything_else(kind: str) -> None:
    """I-CONTENT-TYPE: and so nothing a web page may send without asking."""
    with pytest.raises(UnsupportedMediaType):
        check_media_type({"content-type": kind})


def test_refuses_a_compressed_body() -> None:
    """I-BODY-LIMIT: nothing is expanded."""
    with pytest.raises(UnsupportedMediaType, match="gzip"):
        check_media_type({"content-type": "application/json", "content-encoding": "gzip"})
