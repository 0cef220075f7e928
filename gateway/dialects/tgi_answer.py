"""The answers of text-generation-inference: token objects, details, stream events, headers.

Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from backends.types import (
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    PromptToken,
    Token,
    Usage,
)
from gateway.dialects.base import Timings
from gateway.dialects.gather import finite
from gateway.dialects.tgi_errors import tgi_error_event
from gateway.errors import GatewayError

_FINISH_NAMES = {
    FinishReason.EOS: "eos_token",
    FinishReason.STOP: "stop_sequence",
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",  # cut short, too: this wire has one word
}


class TgiStream:
    """The encoder of one stream.

    The last token's event waits for `Finished`, which alone knows its details. A choice whose time
    was over has sent all its tokens by then: the details come with a token of id 0 that is none.
    """

    def __init__(self, *, prefix: str, details: bool, seed: int | None) -> None:
        self._text = [prefix]
        self._details = details
        self._seed = seed
        self._num_events = 0
        # A stream without tokens still has to end in an event with its text.
        self._last = Token(index=0, text="", special=True)

    def feed(self, event: Event) -> bytes:
        """See `StreamEncoder.feed`."""
        match event:
            case Token():
                return self._token(event)
            case PromptLogprobs():
                return b""  # never asked for in a stream
            case Finished():
                tail = "".join(event.tails)
                last = Token(index=0, text=tail) if tail else self._last
                text = orjson.dumps("".join(self._text) + tail)
                details = b"null"
                if self._details:
                    details = orjson.dumps(_stream_details(event, self._seed))
                return self._event(last, text, details)

    def fail(self, error: GatewayError) -> bytes:
        """See `StreamEncoder.fail`."""
        return tgi_error_event(error)

    def _token(self, token: Token) -> bytes:
        self._text.append(token.text)
        if token.finish_reason is not None:
            self._last = token
            return b""
        return self._event(token, b"null", b"null")

    def _event(self, token: Token, text: bytes, details: bytes) -> bytes:
        self._num_events += 1
        top = orjson.dumps(top_token_objects(token)) if token.top_logprobs else b""
        return b'data: {"index":%d,"token":%b%b%b,"generated_text":%b,"details":%b}\n\n' % (
            self._num_events,
            orjson.dumps(token_object(token)),
            b',"top_tokens":' if top else b"",
            top,
            text,
            details,
        )


def token_object(token: Token) -> dict[str, object]:
    """`{id, text, logprob, special}`.

    A special token adds no text to the answer and is shown by its name. An id the upstream did not
    tell is 0: clients' types know no null.
    """
    chosen = token.logprob
    return {
        "id": token.token_id or 0,
        "text": chosen.text if token.special and chosen else token.text,
        "logprob": finite(chosen.logprob) if chosen else None,
        "special": token.special,
    }


def top_token_objects(token: Token) -> list[dict[str, object]]:
    """The likeliest alternatives, most likely first. Only of the chosen one is it known whether it
    is special.
    """
    return [
        {
            "id": entry.token_id,
            "text": entry.text,
            "logprob": finite(entry.logprob),
            "special": token.special and entry.token_id == token.token_id,
        }
        for entry in token.top_logprobs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSequence:
    """One of the sequences that were generated, at its end."""

    text: str
    tokens: Sequence[Token]
    reason: FinishReason
    seed: int | None


def whole_details(
    best: WholeSequence,
    others: Sequence[WholeSequence],
    *,
    prompt_tokens: int,
    prefill: Sequence[PromptToken],
    with_top_tokens: bool,
) -> dict[str, object]:
    """`details` of an answer in one piece; `others` came off worse under `best_of`. `prefill` is
    empty unless it was asked for.
    """
    begun = [_prefill_object(token) for token in prefill]
    details = _sequence_details(best, begun, with_top_tokens=with_top_tokens)
    details["input_length"] = prompt_tokens
    if others:
        details["best_of_sequences"] = [
            {"generated_text": other.text}
            | _sequence_details(other, begun, with_top_tokens=with_top_tokens)
            for other in others
        ]
    return details


def _sequence_details(
    sequence: WholeSequence, prefill: Sequence[dict[str, object]], *, with_top_tokens: bool
) -> dict[str, object]:
    details: dict[str, object] = {
        "finish_reason": _FINISH_NAMES[sequence.reason],
        "generated_tokens": len(sequence.tokens),
        "seed": sequence.seed,
        "prefill": prefill,
        "tokens": [token_object(token) for token in sequence.tokens],
    }
    if with_top_tokens:
        details["top_tokens"] = [top_token_objects(token) for token in sequence.tokens]
    return details


def _prefill_object(token: PromptToken) -> dict[str, object]:
    """`{id, text, logprob}`; null for the first token, of which nothing is known."""
    logprob = None if token.logprob is None else finite(token.logprob)
    return {"id": token.token_id, "text": token.text, "logprob": logprob}


def timing_headers(timings: Timings, usage: Usage) -> tuple[tuple[str, str], ...]:
    """Where the time went: `x-compute-time` in seconds, all others in whole milliseconds."""
    per_token_s = timings.inference_s / max(usage.completion_tokens, 1)
    return (
        ("x-compute-time", f"{timings.total_s:.6f}"),
        ("x-total-time", _ms(timings.total_s)),
        ("x-validation-time", _ms(timings.validation_s)),
        ("x-queue-time", _ms(timings.queue_s)),
        ("x-inference-time", _ms(timings.inference_s)),
        ("x-time-per-token", _ms(per_token_s)),
        ("x-prompt-tokens", str(usage.prompt_tokens)),
        ("x-generated-tokens", str(usage.completion_tokens)),
    )


def _stream_details(finished: Finished, seed: int | None) -> dict[str, object]:
    return {
        "finish_reason": _FINISH_NAMES[finished.reasons[0]],
        "generated_tokens": finished.usage.completion_tokens,
        "seed": seed,
        "input_length": finished.usage.prompt_tokens,
    }


def _ms(time_s: float) -> str:
    return str(int(time_s * 1000))
