"""OpenAI text completions (legacy), with vLLM's extensions: `POST /v1/completions`.

Choice `i * n + j` is child j of prompt i. With `best_of` above `n` so many are generated, counted
in the usage, and the n of the highest mean log-probability are the answer. Streams: a chunk for
every token with text; the last of a choice carries its finish reason. With logprobs, tokens without
text are reported on the choice's next chunk. `echo` puts the prompt in front of each choice's text,
and with `logprobs` its tokens in front of the answer's; then, or with vLLM's `prompt_logprobs`,
`max_tokens` may be 0: the prompt is scored and nothing generated.

Source: OpenAI's OpenAPI document, 2.3.0. Knows no limits of tenants and no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    PromptToken,
    TextPrompt,
    Token,
)
from gateway.dialects.base import Reply, Stamp, Timings
from gateway.dialects.fields import read_object, unknown_fields, validate
from gateway.dialects.gather import best_first, gather, gather_prompts
from gateway.dialects.openai_answer import (
    FINISH_NAMES,
    Chunks,
    finish_json,
    identity,
    usage_object,
)
from gateway.dialects.openai_completion_fields import COMPLETIONS_UNBUILT, CompletionBody, check
from gateway.dialects.openai_errors import openai_error_event, openai_error_reply
from gateway.dialects.openai_fields import IGNORED, beams
from gateway.dialects.openai_logprobs import LogprobLists, prompt_logprobs_list
from gateway.errors import GatewayError


class OpenAICompletions:
    """The dialect."""

    name = "completions"

    def parse(self, body: bytes, stamp: Stamp) -> CompletionExchange:
        """See `Dialect.parse`."""
        document = read_object(body)
        fields = validate(CompletionBody, document)
        prompts = fields.prompts()
        check(fields, prompts, document)
        found = beams(fields, fields.num_made)
        num_drawn = fields.n if found else fields.num_made
        return CompletionExchange(
            request=GenerationRequest(
                request_id=stamp.request_id,
                model=fields.model,
                prompts=prompts,
                sampling=fields.sampling(
                    drawn_seed=stamp.seed,
                    logprobs=fields.logprobs is not None or num_drawn > fields.n,
                    top_logprobs=fields.logprobs or 0,
                    prompt_logprobs=fields.num_prompt_logprobs,
                ),
                max_tokens=min(fields.max_tokens, UNLIMITED_TOKENS),
                n=num_drawn,
                beams=found,
                stop=tuple(fields.stop),
                include_stop_str=fields.include_stop_str_in_output,
                stream=fields.stream,
                cache_salt=fields.cache_salt or "",
                session=fields.prompt_cache_key,
                tags=fields.metadata,
                extra=unknown_fields(document, CompletionBody, IGNORED, COMPLETIONS_UNBUILT),
            ),
            created_s=stamp.created_s,
            n=fields.n,
            logprobs=fields.logprobs,
            prompt_logprobs=fields.prompt_logprobs,
            echo=fields.echo,
            include_usage=fields.stream_options.include_usage,
        )

    def error(self, error: GatewayError) -> Reply:
        """See `Dialect.error`."""
        return openai_error_reply(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionExchange:
    """One completions request. It asks for `n` choices of each prompt, of those that are generated.

    `logprobs` and `prompt_logprobs` are null, or how many of the likeliest go beside each token.
    """

    request: GenerationRequest
    created_s: int
    n: int
    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    include_usage: bool
    stream_headers: tuple[tuple[str, str], ...] = ()

    def stream(self, model: str) -> CompletionStream:
        """See `Exchange.stream`."""
        chunks = Chunks(
            self._head(model),
            member="text",
            num_choices=len(self.request.prompts) * self.n,
            include_usage=self.include_usage,
        )
        return CompletionStream(chunks, self)

    def collect(self, model: str, events: Sequence[Event], timings: Timings) -> Reply:
        """See `Exchange.collect`."""
        choices, finished = gather(events, self.request.num_choices)
        told = gather_prompts(events)
        answer = self._head(model) | {
            "choices": [
                self._choice(index, told.get(index // self.n, ()), choices[made])
                | {"finish_reason": FINISH_NAMES[finished.reasons[made]]}
                for index, made in enumerate(self._chosen(choices))
            ],
            "usage": usage_object(finished.usage),
        }
        return Reply(body=orjson.dumps(answer))

    def echoed(self, prompt: int, tokens: Sequence[PromptToken] = ()) -> str:
        """What the text of each choice of this prompt begins with; `tokens` as far as told."""
        given = self.request.prompts[prompt]
        if not self.echo:
            return ""
        if isinstance(given, TextPrompt):
            return given.text
        return b"".join(token.raw for token in tokens).decode("utf-8", "replace")

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
        self, index: int, prompt: Sequence[PromptToken], tokens: Sequence[Token]
    ) -> dict[str, object]:
        echoed = self.echoed(index // self.n, prompt)
        logprobs = None
        if self.logprobs is not None:
            lists = LogprobLists(self.logprobs)
            if self.echo:
                lists.add_prompt(echoed, prompt)
            for token in tokens:
                lists.add(token)
            logprobs = lists.take()
        choice: dict[str, object] = {
            "index": index,
            "text": echoed + "".join(token.text for token in tokens),
            "logprobs": logprobs,
        }
        if self.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs_list(prompt, self.prompt_logprobs)
        return choice


class CompletionStream:
    """The encoder of one streamed completion."""

    def __init__(self, chunks: Chunks, exchange: CompletionExchange) -> None:
        self._chunks = chunks
        self._exchange = exchange
        indices = range(len(exchange.request.prompts) * exchange.n)
        self._open = set(indices)  # choices without a finish reason yet
        # What goes before the choice's next text.
        self._prefix = [exchange.echoed(index // exchange.n) for index in indices]
        most = exchange.logprobs
        self._logprobs = None if most is None else [LogprobLists(most) for _ in indices]

    def feed(self, event: Event) -> bytes:
        """See `StreamEncoder.feed`."""
        match event:
            case PromptLogprobs():
                self._prompt(event)
                return b""
            case Token():
                return self._token(event)
            case Finished():
                tails = dict(enumerate(event.tails))
                ends = [
                    self._chunk(index, tails.get(index, ""), event.reasons[index])
                    for index in sorted(self._open)
                ]
                return b"".join(ends) + self._chunks.closing(event.usage)

    def fail(self, error: GatewayError) -> bytes:
        """See `StreamEncoder.fail`."""
        return openai_error_event(error)

    def _prompt(self, event: PromptLogprobs) -> None:
        """Have the first chunk of each of its choices begin with the prompt."""
        text = self._exchange.echoed(event.prompt, event.tokens)
        first = event.prompt * self._exchange.n
        for index in range(first, first + self._exchange.n):
            self._prefix[index] = text
            if self._logprobs is not None:
                self._logprobs[index].add_prompt(text, event.tokens)

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
