"""A local backend over an engine that counts: it recites the alphabet, so answers are known."""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backends.base import Backend
from backends.client import EngineClient
from backends.local import (
    LocalBackend,
    Sharing,
)
from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    Finished,
    GenerationRequest,
    Prompt,
    SamplingParams,
    TextPrompt,
    Token,
)
from tests.backends.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.backends.waiting import until
from tests.clock import FakeClock

if TYPE_CHECKING:
    from tests.backends.conftest import CountingProcess, EngineProcesses

GREEDY = SamplingParams(temperature=0.0)


class Reciter:
    """A local backend over an engine that counts, which makes it recite the alphabet."""

    def __init__(self, engines: EngineProcesses) -> None:
        self._engines = engines
        self._opened: list[LocalBackend] = []
        self.clock = FakeClock()
        self.template_threads: list[str] = []
        self.template_takes_s = 0.0

    def open(self, **options: object) -> LocalBackend:
        return self.open_on(self.start(**options))

    def start(self, **options: object) -> CountingProcess:
        return self._engines.start(vocab_size=VOCAB_SIZE, **options)

    def open_on(self, process: CountingProcess, *, sharing: Sharing = "tenant") -> LocalBackend:
        client = EngineClient(process.socket_path)
        backend = LocalBackend(
            "reciter",
            client,
            byte_tokenizer(),
            now=self._now,
            sharing=sharing,
            clock=self.clock,
        )
        self._opened.append(backend)
        return backend

    async def aclose(self) -> None:
        for backend in self._opened:
            await backend.aclose()

    def _now(self) -> datetime:
        self.clock.advance(self.template_takes_s)
        self.template_threads.append(threading.current_thread().name)
        return datetime(2026, 1, 1, tzinfo=UTC)


def request(
    *prompts: str | Prompt,
    max_tokens: int = UNLIMITED_TOKENS,
    clamp_max_tokens: bool = True,
    n: int = 1,
    stop: tuple[str, ...] = (),
    include_stop_str: bool = False,
    sampling: SamplingParams = GREEDY,
    timeout_s: float = math.inf,
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        model="reciter",
        prompts=tuple(TextPrompt(text=p) if isinstance(p, str) else p for p in prompts),
        sampling=sampling,
        max_tokens=max_tokens,
        clamp_max_tokens=clamp_max_tokens,
        n=n,
        stop=stop,
        include_stop_str=include_stop_str,
        timeout_s=timeout_s,
    )


async def run(backend: Backend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    async with aclosing(backend.generate(request)) as stream:
        events: list[Event] = [event async for event in stream]
    *tokens, finished = events
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


async def read(stream: AsyncGenerator[Event, None]) -> None:
    async for _ in stream:
        pass


def text_of(tokens: list[Token], index: int = 0) -> str:
    return "".join(token.text for token in tokens if token.index == index)


async def until_idle(backend: LocalBackend) -> None:
    client = backend._client
    await until(lambda: client.stats.num_running == client.stats.num_waiting == 0)


async def events_of(backend: Backend, request: GenerationRequest) -> list[Event]:
    async with aclosing(backend.generate(request)) as stream:
        return [event async for event in stream]
