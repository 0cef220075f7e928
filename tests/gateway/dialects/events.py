"""Requests and events to feed dialects with by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable

from backends.types import (
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    PromptToken,
    Token,
    TokenLogprob,
    Usage,
)
from gateway.dialects.base import Stamp, StreamEncoder, Timings

STAMP = Stamp(request_id="r1", created_s=1700000000, seed=7)
TIMINGS = Timings(total_s=1.5, validation_s=0.001, queue_s=0.25, inference_s=1.2)


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def chat_body(content: object = "hi", **fields: object) -> bytes:
    return body(**{"model": "m", "messages": [{"role": "user", "content": content}], **fields})


def entry(text: str, logprob: float = -0.5, token_id: int = 5) -> TokenLogprob:
    return TokenLogprob(token_id=token_id, text=text, raw=text.encode(), logprob=logprob)


def token(
    text: str,
    *,
    index: int = 0,
    finish: FinishReason | None = None,
    chosen: TokenLogprob | None = None,
    top: tuple[TokenLogprob, ...] = (),
    special: bool = False,
) -> Token:
    return Token(
        index=index,
        text=text,
        token_id=chosen.token_id if chosen else 5,
        special=special,
        logprob=chosen,
        top_logprobs=top,
        finish_reason=finish,
    )


def told(*texts: str, prompt: int = 0, added: str = "") -> PromptLogprobs:
    """A prompt of such tokens, the p-th with id 10 + p, logprob -p, rank p + 1; two are likelier.

    A token `added` by the tokenizer comes first, and takes no room in the text.
    """
    tokens: list[PromptToken] = []
    start = 0
    for position, text in enumerate([added, *texts] if added else texts):
        is_first = not tokens
        tokens.append(
            PromptToken(
                token_id=10 + position,
                text=text,
                raw=text.encode(),
                start=start,
                logprob=None if is_first else -float(position),
                rank=None if is_first else position + 1,
                top_logprobs=() if is_first else (entry("x", -0.25, 7), entry("y", -0.5, 8)),
            )
        )
        start += 0 if is_first and added else len(text)
    return PromptLogprobs(prompt=prompt, tokens=tuple(tokens))


def end_of_turn(index: int = 0) -> Token:
    """The token a model ends its turn with: special, without text."""
    chosen = entry("<|im_end|>", -0.125, token_id=2)
    return token("", index=index, finish=FinishReason.EOS, chosen=chosen, special=True)


def finished(
    *reasons: FinishReason, completion_tokens: int = 2, cached_tokens: int = 0
) -> Finished:
    return Finished(
        reasons=reasons or (FinishReason.EOS,),
        usage=Usage(
            prompt_tokens=3, completion_tokens=completion_tokens, cached_tokens=cached_tokens
        ),
    )


def streamed(encoder: StreamEncoder, events: Iterable[Event]) -> bytes:
    return b"".join(encoder.feed(event) for event in events)


def data_lines(stream: bytes) -> list[str]:
    """The payloads of a stream in our framing; anything else in it fails."""
    assert stream.endswith(b"\n\n")
    events = stream.decode().removesuffix("\n\n").split("\n\n")
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]
