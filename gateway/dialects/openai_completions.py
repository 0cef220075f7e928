"""OpenAI text completions (legacy), with vLLM's extensions: `POST /v1/completions`.

Choice `i * n + j` is child j of prompt i. With `best_of` above `n` so many are generated, counted
in the usage, and the n of the highest mean log-probability are the answer. Streams: a chunk for
every token with text; the last of a choice carries its finish reason. With logprobs, tokens without
text are reported on the choice's next chunk. `text_offset` counts characters of the generated text
from 0.

Source: OpenAI's OpenAPI document, 2.3.0. Knows no limits of tenants and no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import orjson
from pydantic import Discriminator, Field, Tag

from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    FinishReason,
    GenerationRequest,
    Prompt,
    TextPrompt,
    Token,
    TokenPrompt,
)
from gateway.dialects.base import Reply, Stamp, Timings
from gateway.dialects.fields import Unbuilt, read_object, refuse_unbuilt, unknown_fields, validate
from gateway.dialects.gather import best_first, finite, gather
from gateway.dialects.openai_answer import (
    FINISH_NAMES,
    Chunks,
    finish_json,
    identity,
    usage_object,
)
from gateway.dialects.openai_errors import openai_error_event, openai_error_reply
from gateway.dialects.openai_fields import (
    IGNORED,
    MAX_CHOICES,
    MAX_MODEL_CHARS,
    MAX_TOP_LOGPROBS,
    UNBUILT,
    GenerationFields,
    TokenId,
    check_fan_out,
    check_min_tokens,
)
from gateway.errors import GatewayError, InvalidRequest, UnsupportedValue

_UNBUILT: Unbuilt = {**UNBUILT, "suffix": (), "prompt_embeds": ()}


def _prompt_form(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    match cast("list[object]", value):
        case [] | [str(), *_]:
            return "texts"
        case [list(), *_]:
            return "token_lists"
        case _:
            return "tokens"


_TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_Prompts = Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)


class CompletionBody(GenerationFields):
    """The body, as far as it is read."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARS)] = ""  # the default model
    prompt: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[str], _Prompts, Tag("texts")]
        | Annotated[_TokenIds, Tag("tokens")]
        | Annotated[list[_TokenIds], _Prompts, Tag("token_lists")],
        Discriminator(
            _prompt_form,
            custom_error_type="prompt_type",
            custom_error_message="a string, an array of strings, of token ids, or of such arrays",
        ),
    ]
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None  # null: as many as `n`
    echo: bool = False
    add_special_tokens: bool = True

    def prompts(self) -> tuple[Prompt, ...]:
        """One prompt for each text or list of token ids."""
        given = cast("list[object]", [self.prompt] if isinstance(self.prompt, str) else self.prompt)
        if isinstance(given[0], int):
            given = [given]
        return tuple(
            TextPrompt(text=prompt, add_special_tokens=self.add_special_tokens)
            if isinstance(prompt, str)
            else TokenPrompt(token_ids=tuple(cast("list[int]", prompt)))
            for prompt in given
        )


class OpenAICompletions:
    """The dialect."""

    name = "completions"

    def parse(self, body: bytes, stamp: Stamp) -> CompletionExchange:
        """See `Dialect.parse`."""
        document = read_object(body)
        fields = validate(CompletionBody, document)
        refuse_unbuilt(document, _UNBUILT)
        prompts = fields.prompts()
        best_of = _best_of(fields)
        check_fan_out(len(prompts), best_of, param="n" if best_of == fields.n else "best_of")
        max_tokens = min(fields.max_tokens, UNLIMITED_TOKENS)
        check_min_tokens(fields.min_tokens, max_tokens)
        return CompletionExchange(
            request=GenerationRequest(
                request_id=stamp.request_id,
                model=fields.model,
                prompts=prompts,
                sampling=fields.sampling(
                    drawn_seed=stamp.seed,
                    logprobs=fields.logprobs is not None or best_of > fields.n,
                    top_logprobs=fields.logprobs or 0,
                ),
                max_tokens=max_tokens,
                n=best_of,
                stop=tuple(fields.stop),
                include_stop_str=fields.include_stop_str_in_output,
                stream=fields.stream,
                cache_salt=fields.cache_salt or "",
                extra=unknown_fields(document, CompletionBody, IGNORED, _UNBUILT),
            ),
            created_s=stamp.created_s,
            n=fields.n,
            logprobs=fields.logprobs is not None,
            include_usage=fields.stream_options.include_usage,
            echoed=_echoed(fields, prompts),
        )

    def error(self, error: GatewayError) -> Reply:
        """See `Dialect.error`."""
        return openai_error_reply(error)


def _best_of(fields: CompletionBody) -> int:
    """How many choices to generate for each prompt."""
    best_of = fields.n if fields.best_of is None else fields.best_of
    if best_of < fields.n:
        raise InvalidRequest(
            f"best_of must be at least n, which is {fields.n}, got {best_of}.",
            param="best_of",
            code="integer_below_min_value",
        )
    if best_of > fields.n and fields.stream:
        raise InvalidRequest(
            f"best_of must equal n when streaming, got {best_of} and {fields.n}: which are best is "
            "known at the end only. Remove `best_of` or `stream`.",
            param="best_of",
        )
    return best_of


def _echoed(fields: CompletionBody, prompts: tuple[Prompt, ...]) -> tuple[str, ...]:
    """What each choice's text begins with."""
    texts = [prompt.text for prompt in prompts if isinstance(prompt, TextPrompt)]
    if not fields.echo:
        texts = [""] * len(prompts)
    elif fields.logprobs is not None or len(texts) < len(prompts):
        raise UnsupportedValue(
            "`echo` is supported for text prompts without `logprobs` only; remove one of them.",
            param="echo",
        )
    return tuple(text for text in texts for _ in range(fields.n))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionExchange:
    """One completions request. It asks for `n` choices of each prompt, of those that are generated.

    `echoed` has, for each choice asked for, the text in front of the answer.
    """

    request: GenerationRequest
    created_s: int
    n: int
    logprobs: bool
    include_usage: bool
    echoed: tuple[str, ...]
    stream_headers: tuple[tuple[str, str], ...] = ()

    def stream(self, model: str) -> CompletionStream:
        """See `Exchange.stream`."""
        chunks = Chunks(
            self._head(model),
            member="text",
            num_choices=len(self.echoed),
            include_usage=self.include_usage,
        )
        return CompletionStream(chunks, self.echoed, logprobs=self.logprobs)

    def collect(self, model: str, events: Sequence[Event], timings: Timings) -> Reply:
        """See `Exchange.collect`."""
        choices, finished = gather(events, self.request.num_choices)
        answer = self._head(model) | {
            "choices": [
                self._choice(index, choices[made], finished.reasons[made])
                for index, made in enumerate(self._chosen(choices))
            ],
            "usage": usage_object(finished.usage),
        }
        return Reply(body=orjson.dumps(answer))

    def _chosen(self, choices: Sequence[Sequence[Token]]) -> list[int]:
        """Of each prompt's choices the best, best first; all in order if all were asked for."""
        num_made = self.request.n
        if num_made == self.n:
            return list(range(len(choices)))
        return [
            first + made
            for first in range(0, len(choices), num_made)
            for made in best_first(choices[first : first + num_made])[: self.n]
        ]

    def _head(self, model: str) -> dict[str, object]:
        return identity(
            id=f"cmpl-{self.request.request_id}",
            object="text_completion",
            created_s=self.created_s,
            model=model,
        )

    def _choice(
        self, index: int, tokens: Sequence[Token], reason: FinishReason
    ) -> dict[str, object]:
        logprobs = None
        if self.logprobs:
            writer = LogprobLists()
            for token in tokens:
                writer.add(token)
            logprobs = writer.take()
        return {
            "index": index,
            "text": self.echoed[index] + "".join(token.text for token in tokens),
            "logprobs": logprobs,
            "finish_reason": FINISH_NAMES[reason],
        }


class CompletionStream:
    """The encoder of one streamed completion."""

    def __init__(self, chunks: Chunks, echoed: Sequence[str], *, logprobs: bool) -> None:
        self._chunks = chunks
        self._open = set(range(len(echoed)))  # choices without a finish reason yet
        self._prefix = list(echoed)  # what goes before the choice's next text
        self._logprobs = [LogprobLists() for _ in echoed] if logprobs else None

    def feed(self, event: Event) -> bytes:
        """See `StreamEncoder.feed`."""
        if isinstance(event, Token):
            return self._token(event)
        tails = dict(enumerate(event.tails))
        ends = [
            self._chunk(index, tails.get(index, ""), event.reasons[index])
            for index in sorted(self._open)
        ]
        return b"".join(ends) + self._chunks.closing(event.usage)

    def fail(self, error: GatewayError) -> bytes:
        """See `StreamEncoder.fail`."""
        return openai_error_event(error)

    def _token(self, token: Token) -> bytes:
        if self._logprobs is not None:
            self._logprobs[token.index].add(token)
        if token.text or token.finish_reason is not None:
            return self._chunk(token.index, token.text, token.finish_reason)
        return b""

    def _chunk(self, index: int, text: str, reason: FinishReason | None) -> bytes:
        if self._prefix[index]:
            text, self._prefix[index] = self._prefix[index] + text, ""
        if reason is not None:
            self._open.discard(index)
        return self._chunks.chunk(
            index,
            orjson.dumps(text),
            logprobs=orjson.dumps(self._logprobs[index].take() if self._logprobs else None),
            finish=b"null" if reason is None else finish_json(reason),
        )


class LogprobLists:
    """The `logprobs` object of one choice, in parallel lists, taken out piece by piece."""

    def __init__(self) -> None:
        self._num_chars = 0  # of the text before the next token
        self._lists = _empty_lists()

    def add(self, token: Token) -> None:
        """Report `token` with the next piece, if its log-probability is known."""
        chosen = token.logprob
        if chosen is None:
            return
        top: dict[str, float] = {}
        for entry in (*token.top_logprobs, chosen):  # two entries may look alike: the likelier wins
            top.setdefault(entry.text, finite(entry.logprob))
        self._lists["tokens"].append(chosen.text)
        self._lists["token_logprobs"].append(finite(chosen.logprob))
        self._lists["top_logprobs"].append(top)
        self._lists["text_offset"].append(self._offset(b"" if token.special else chosen.raw))

    def take(self) -> dict[str, list[object]]:
        """The tokens added since the last call."""
        taken, self._lists = self._lists, _empty_lists()
        return taken

    def _offset(self, raw: bytes) -> int:
        """Where in the text the token starts; one that goes on inside a character, at that one."""
        starts_inside = bool(raw) and raw[0] & 0xC0 == 0x80
        offset = self._num_chars - starts_inside
        self._num_chars += sum(byte & 0xC0 != 0x80 for byte in raw)
        return offset


def _empty_lists() -> dict[str, list[object]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
