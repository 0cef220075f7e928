"""A bounded load on a running server, measured as its clients see it: TTFT, ITL, throughput.

Closed loop: `concurrency` clients, each sending its next request when the last one has ended. Knows
only the OpenAI wire format, so that other servers can be measured in the same way.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

FILLER = "The switch in the track sends each train down its own line. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send. Every request asks for exactly `max_tokens`, whatever the model would say."""

    model: str
    num_requests: int = 32
    concurrency: int = 8
    prompt_chars: int = 200
    max_tokens: int = 32

    def requests(self, key: str) -> Iterator[Asked]:
        """All of them, for a key of the server."""
        for number in range(self.num_requests):
            yield Asked(key=key, body=self.body(number))

    def body(self, number: int) -> dict[str, object]:
        """The `number`th request; no two prompts begin alike, so that no prefix cache helps."""
        text = f"{number} " + FILLER * math.ceil(self.prompt_chars / len(FILLER))
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text[: self.prompt_chars]}],
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One streamed chat completion to send."""

    key: str
    body: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request. `error` is empty if it ended well; gaps are the times between two deltas."""

    ttft_s: float
    gaps_s: tuple[float, ...]
    completion_tokens: int
    total_s: float  # from sending it to the end of the answer
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All requests of a run, in the order in which they were given."""

    samples: tuple[Sample, ...]
    wall_s: float

    def lines(self) -> Iterator[str]:
        """For a person."""
        good = [sample for sample in self.samples if not sample.error]
        yield f"requests       {len(good)} good, {len(self.samples) - len(good)} failed"
        for error in sorted({sample.error for sample in self.samples if sample.error}):
            yield f"  {error}"
        if good:
            tokens = sum(sample.completion_tokens for sample in good)
            yield f"output         {tokens / self.wall_s:.1f} tokens/s"
            yield f"TTFT           {_spread([sample.ttft_s for sample in good])}"
            yield f"ITL            {_spread([gap for sample in good for gap in sample.gaps_s])}"


async def run(base_url: str, requests: Iterable[Asked], *, concurrency: int) -> Report:
    """Send them, so many at a time, and wait for the last to end."""
    numbered = enumerate(requests)
    samples: dict[int, Sample] = {}
    async with httpx.AsyncClient(
        base_url=base_url,
        timeout=300.0,
        limits=httpx.Limits(max_connections=concurrency),
        trust_env=False,
    ) as client:

        async def work() -> None:
            for number, asked in numbered:
                samples[number] = await _measure(client, asked)

        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(work())
        wall_s = time.perf_counter() - started_s
    return Report(samples=tuple(samples[number] for number in sorted(samples)), wall_s=wall_s)


async def _measure(client: httpx.AsyncClient, asked: Asked) -> Sample:
    started_s = time.perf_counter()
    arrivals_s: list[float] = []
    completion_tokens = 0
    error = "the stream ended without [DONE]"
    try:
        async with aclosing(_events(client, asked)) as events:
            async for event in events:
                if event == "[DONE]":
                    error = ""
                    break
                chunk: dict[str, Any] = json.loads(event)
                if "error" in chunk:
                    error = str(chunk["error"]["message"])
                    break
                if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    arrivals_s.append(time.perf_counter())
                if chunk.get("usage"):
                    completion_tokens = int(chunk["usage"]["completion_tokens"])
    except httpx.HTTPError as failure:
        error = str(failure) or type(failure).__name__
    first_s = arrivals_s[0] if arrivals_s else time.perf_counter()
    return Sample(
        ttft_s=first_s - started_s,
        gaps_s=tuple(b - a for a, b in pairwise(arrivals_s)),
        completion_tokens=completion_tokens or len(arrivals_s),
        total_s=time.perf_counter() - started_s,
        error=error,
    )


async def _events(client: httpx.AsyncClient, asked: Asked) -> AsyncGenerator[str, None]:
    headers = {**asked.headers, "authorization": f"Bearer {asked.key}"}
    async with client.stream(
        "POST", "/v1/chat/completions", json=asked.body, headers=headers
    ) as answer:
        if answer.is_error:
            await answer.aread()
            answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; of one value, that value."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _spread(values_s: Sequence[float]) -> str:
    if not values_s:
        return "-"
    p50, p95, p99 = (f"{percentile(values_s, at) * 1000:.1f} ms" for at in (0.5, 0.95, 0.99))
    return f"p50 {p50}, p95 {p95}, p99 {p99}"
