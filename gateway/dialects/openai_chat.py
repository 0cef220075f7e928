"""OpenAI chat completions, with vLLM's extensions: `POST /v1/chat/completions`.

Streams: one role chunk a choice, then content chunks, then one finish chunk a choice, the usage
chunk if asked for, `[DONE]`. A content chunk is sent only when there is text. With logprobs every
generated token has its item: those of tokens without text (held back, or special) wait for the
choice's next text, and at its end go out on a content chunk of their own.

Source: OpenAI's OpenAPI document, 2.3.0. Knows no limits of tenants and no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import orjson
from pydantic import Field

from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    Token,
    TokenLogprob,
)
from gateway.dialects.base import Reply, Stamp, Timings
from gateway.dialects.fields import (
    Document,
    Unbuilt,
    read_object,
    refuse_unbuilt,
    unknown_fields,
    validate,
)
from gateway.dialects.gather import finite, gather, gather_prompts
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
    MAX_MODEL_CHARS,
    MAX_TOP_LOGPROBS,
    UNBUILT,
    GenerationFields,
    beams,
    check_min_tokens,
    check_prompt_logprobs,
)
from gateway.dialects.openai_logprobs import prompt_logprobs_list
from gateway.dialects.openai_messages import ChatFields
from gateway.errors import GatewayError, InvalidRequest

_UNBUILT: Unbuilt = {
    **UNBUILT,
    "tools": ([],),
    "tool_choice": ("none",),
    "best_of": (1,),
    "echo": (False,),
    "add_special_tokens": (False,),
    "chat_template": (),
    "documents": ([],),
}


class ChatBody(GenerationFields, ChatFields):
    """The body, as far as it is read."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARS)]
    max_tokens: Annotated[int, Field(ge=1)] = UNLIMITED_TOKENS
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None  # wins over `max_tokens`
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0


class OpenAIChat:
    """The dialect."""

    name = "chat"

    def parse(self, body: bytes, stamp: Stamp) -> ChatExchange:
        """See `Dialect.parse`."""
        document = read_object(body)
        if document.get("model") is None:
            raise InvalidRequest(
                "you must provide a model parameter",
                param="model",
                code="missing_required_parameter",
            )
        fields = validate(ChatBody, document)
        if fields.top_logprobs and not fields.logprobs:
            raise InvalidRequest(
                "when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs"
            )
        check_prompt_logprobs(fields)
        refuse_unbuilt(_without_forbidden_tools(document), _UNBUILT)
        return ChatExchange(
            request=_request(fields, stamp, unknown_fields(document, ChatBody, IGNORED, _UNBUILT)),
            created_s=stamp.created_s,
            include_usage=fields.stream_options.include_usage,
        )

    def error(self, error: GatewayError) -> Reply:
        """See `Dialect.error`."""
        return openai_error_reply(error)


def _without_forbidden_tools(document: Document) -> Document:
    """Tools that the client itself forbids to call are not shown to the model: nothing is lost."""
    if document.get("tool_choice") == "none":
        document = document | {"tools": None}
    if document.get("function_call") == "none":
        document = document | {"functions": None}
    return document


def _request(fields: ChatBody, stamp: Stamp, extra: Document) -> GenerationRequest:
    max_tokens = min(fields.max_completion_tokens or fields.max_tokens, UNLIMITED_TOKENS)
    check_min_tokens(fields.min_tokens, max_tokens)
    return GenerationRequest(
        request_id=stamp.request_id,
        model=fields.model,
        prompts=(fields.chat_prompt(),),
        sampling=fields.sampling(
            drawn_seed=stamp.seed,
            logprobs=fields.logprobs,
            top_logprobs=fields.top_logprobs,
            prompt_logprobs=fields.prompt_logprobs,
        ),
        max_tokens=max_tokens,
        n=fields.n,
        beams=beams(fields, fields.n),
        stop=tuple(fields.stop),
        include_stop_str=fields.include_stop_str_in_output,
        stream=fields.stream,
        cache_salt=fields.cache_salt or "",
        session=fields.prompt_cache_key,
        tags=fields.metadata,
        extra=extra,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatExchange:
    """One chat request."""

    request: GenerationRequest
    created_s: int
    include_usage: bool
    stream_headers: tuple[tuple[str, str], ...] = ()

    def stream(self, model: str) -> ChatStream:
        """See `Exchange.stream`."""
        request = self.request
        chunks = Chunks(
            self._head("chat.completion.chunk", model),
            member="delta",
            num_choices=request.num_choices,
            include_usage=self.include_usage,
        )
        return ChatStream(chunks, request.num_choices, logprobs=request.sampling.logprobs)

    def collect(self, model: str, events: Sequence[Event], timings: Timings) -> Reply:
        """See `Exchange.collect`."""
        choices, finished = gather(events, self.request.num_choices)
        answer = self._head("chat.completion", model) | {
            "choices": [
                self._choice(index, tokens, reason)
                for index, (tokens, reason) in enumerate(
                    zip(choices, finished.reasons, strict=True)
                )
            ],
            "usage": usage_object(finished.usage),
        }
        asked = self.request.sampling.prompt_logprobs
        if asked is not None:
            told = gather_prompts(events).get(0, ())
            answer["prompt_logprobs"] = prompt_logprobs_list(told, asked)
        return Reply(body=orjson.dumps(answer))

    def _head(self, kind: str, model: str) -> dict[str, object]:
        return identity(
            id=f"chatcmpl-{self.request.request_id}",
            object=kind,
            created_s=self.created_s,
            model=model,
        )

    def _choice(
        self, index: int, tokens: Sequence[Token], reason: FinishReason
    ) -> dict[str, object]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(token.text for token in tokens),
                "refusal": None,
                "annotations": [],
            },
            "logprobs": _logprobs(tokens) if self.request.sampling.logprobs else None,
            "finish_reason": FINISH_NAMES[reason],
        }


class ChatStream:
    """The encoder of one streamed chat."""

    def __init__(self, chunks: Chunks, num_choices: int, *, logprobs: bool) -> None:
        self._chunks = chunks
        self._open = set(range(num_choices))  # choices without a finish chunk yet
        self._unsent: list[list[Token]] | None = (  # with logprobs: tokens still to be reported
            [[] for _ in range(num_choices)] if logprobs else None
        )
        self._opened = False

    def feed(self, event: Event) -> bytes:
        """See `StreamEncoder.feed`."""
        opening = b"" if self._opened else self._opening()
        match event:
            case Token():
                return opening + self._token(event)
            case PromptLogprobs():
                return opening  # never asked for in a stream
            case Finished():
                tails = [self._content(i, tail) for i, tail in enumerate(event.tails) if tail]
                ends = [self._finish(index, event.reasons[index]) for index in sorted(self._open)]
                return opening + b"".join(tails + ends) + self._chunks.closing(event.usage)

    def fail(self, error: GatewayError) -> bytes:
        """See `StreamEncoder.fail`."""
        return openai_error_event(error)

    def _opening(self) -> bytes:
        self._opened = True
        role = b'{"role":"assistant","content":"","refusal":null}'
        return b"".join(self._chunks.chunk(index, role) for index in sorted(self._open))

    def _token(self, token: Token) -> bytes:
        if self._unsent is not None:
            self._unsent[token.index].append(token)
        sent = self._content(token.index, token.text) if token.text else b""
        if token.finish_reason is not None:
            sent += self._finish(token.index, token.finish_reason)
        return sent

    def _content(self, index: int, text: str) -> bytes:
        delta = b'{"content":%b}' % orjson.dumps(text)
        if self._unsent is None:
            return self._chunks.chunk(index, delta)
        logprobs = orjson.dumps(_logprobs(self._unsent[index]))
        self._unsent[index].clear()
        return self._chunks.chunk(index, delta, logprobs=logprobs)

    def _finish(self, index: int, reason: FinishReason) -> bytes:
        self._open.discard(index)
        unsent = self._content(index, "") if self._unsent and self._unsent[index] else b""
        return unsent + self._chunks.chunk(index, b"{}", finish=finish_json(reason))


def _logprobs(tokens: Sequence[Token]) -> dict[str, object]:
    return {
        "content": [
            _logprob(token.logprob)
            | {"top_logprobs": [_logprob(candidate) for candidate in token.top_logprobs]}
            for token in tokens
            if token.logprob is not None
        ],
        "refusal": None,
    }


def _logprob(entry: TokenLogprob) -> dict[str, object]:
    return {"token": entry.text, "logprob": finite(entry.logprob), "bytes": list(entry.raw)}
