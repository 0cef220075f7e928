"""A bare streaming client for load: reads the text of one chat completion, and may hang up."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came: the text, whether the stream was closed properly, and an error event if any."""

    text: str
    is_done: bool
    error: str | None = None


async def stream_chat(
    client: httpx.AsyncClient, body: dict[str, object], *, hang_up_after: int | None = None
) -> Answer:
    """One streamed chat completion; hangs up after so many events with text if told to."""
    text, num_texts = "", 0
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as got:
        if got.status_code != 200:
            await got.aread()
            return Answer(text="", is_done=False, error=got.text)
        async for line in got.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return Answer(text=text, is_done=True)
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return Answer(text=text, is_done=False, error=event["error"]["message"])
            piece = event["choices"][0]["delta"].get("content") or ""
            text += piece
            num_texts += bool(piece)
            if hang_up_after is not None and num_texts >= hang_up_after:
                break
    return Answer(text=text, is_done=False)
