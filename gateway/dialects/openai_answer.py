"""What chat and text completions share on the way out: usage, fingerprint, pre-encoded chunks.

Per token nothing is built but the bytes around a JSON-escaped text: everything that stays the same
in a stream is encoded once. Knows neither dialect's choice objects.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import orjson

from backends.types import FinishReason, Usage
from gateway.dialects.sse import DONE, frame

FinishName = Literal["stop", "length"]

FINISH_NAMES: dict[FinishReason, FinishName] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",  # cut short, too: this wire has one word
}


def identity(*, id: str, object: str, created_s: int, model: str) -> dict[str, object]:
    """The members every chunk and every answer begins with."""
    return {
        "id": id,
        "object": object,
        "created": created_s,
        "model": model,
        "service_tier": "default",
        "system_fingerprint": "fp_" + hashlib.sha256(model.encode()).hexdigest()[:10],
    }


def usage_object(usage: Usage) -> dict[str, object]:
    """`usage`, with the details strict clients look for."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


class Chunks:
    """Writes the chunks of one stream, each with one choice. Created per request.

    `member` is the name under which a choice carries its piece (`delta` or `text`).
    """

    def __init__(
        self, head: dict[str, object], *, member: str, num_choices: int, include_usage: bool
    ) -> None:
        self._head = orjson.dumps(head)[:-1]
        self._before = [
            b'data: %b,"choices":[{"index":%d,"%b":' % (self._head, index, member.encode())
            for index in range(num_choices)
        ]
        self._after = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._include_usage = include_usage

    def chunk(
        self, index: int, piece: bytes, *, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        """One event; `piece`, `logprobs` and `finish` are JSON."""
        return b'%b%b,"logprobs":%b,"finish_reason":%b%b' % (
            self._before[index],
            piece,
            logprobs,
            finish,
            self._after,
        )

    def closing(self, usage: Usage) -> bytes:
        """The usage chunk if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        tail = b',"choices":[],"usage":%b}' % orjson.dumps(usage_object(usage))
        return frame(self._head + tail) + DONE


def finish_json(reason: FinishReason) -> bytes:
    """A finish reason as JSON."""
    return b'"%b"' % FINISH_NAMES[reason].encode()
