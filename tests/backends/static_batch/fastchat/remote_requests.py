"""Requests for a FastChat backend, and what comes of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from backends.spec import BackendSpec, OptionValue
from backends.static_batch.fastchat.remote import FastChatBackend
from backends.types import (
    ChatPrompt,
    Finished,
    GenerationRequest,
    Message,
    Prompt,
    SamplingParams,
    TextPrompt,
    Token,
)
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    Params,
)

CHAT = ChatPrompt(messages=(Message(role="user", content="Hello there"),))


def spec(**options: OptionValue) -> BackendSpec:
    return BackendSpec(
        name="old", engine="fastchat", model="vicuna", options={"controller_port": 0, **options}
    )


def request(
    *prompts: Prompt, sampling: SamplingParams | None = None, **fields: Any
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        model="public-name",
        prompts=prompts or (TextPrompt(text="one two three"),),
        sampling=sampling or SamplingParams(),
        **fields,
    )


async def run(backend: FastChatBackend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    async with aclosing(backend.generate(request)) as stream:
        *tokens, finished = [event async for event in stream]
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


async def fails_with(
    kind: type[Exception], backend: FastChatBackend, request: GenerationRequest
) -> list[Token]:
    """The tokens that came before the error."""
    tokens: list[Token] = []

    async def collect() -> None:
        async with aclosing(backend.generate(request)) as stream:
            async for event in stream:
                assert isinstance(event, Token)
                tokens.append(event)

    with pytest.raises(kind) as caught:
        await collect()
    assert type(caught.value) is kind
    return tokens


def text(tokens: list[Token], index: int = 0) -> str:
    return "".join(token.text for token in tokens if token.index == index)


def silent_after(*pieces: bytes) -> CannedWorker:
    """A worker that sends these bytes and then nothing, for as long as it runs."""

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece
        await worker.silence.wait()

    worker = CannedWorker(write)
    return worker


async def idle(worker: CannedWorker) -> None:
    async with asyncio.timeout(30):
        while worker.num_running:
            await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
