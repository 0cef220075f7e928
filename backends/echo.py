"""A deterministic fake that answers with what it was told: for tests, demos and load tests.

The answer is the last message's (or the prompt's) own text, a token at a time. Its tokenizer splits
before white space: "to be  or" is "to", " be", "  or"; a token id is the CRC-32 of the piece, and
the end of the answer is the empty piece, a special token of id 0 that counts like any other. Chat
messages count without a template. Delays and faults are options; logprobs are all 0: it is sure of
what it says and of what it was told. Of the sampling params it heeds those that end an answer; with
`min_tokens` it says a short one again.

It needs no model, no process and none of the optional dependencies.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from backends.base import BackendState, BackendStatus, EncodedToken
from backends.errors import (
    BackendOverloaded,
    BackendRejected,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
    StreamInterrupted,
)
from backends.spec import BackendSpec, read_options
from backends.text.stop import StopMatcher, StopStrings
from backends.types import (
    UNLIMITED_TOKENS,
    ChatPrompt,
    ChoiceSoFar,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Prompt,
    PromptLogprobs,
    PromptToken,
    TextPrompt,
    Token,
    TokenLogprob,
    Usage,
)

EOS_TOKEN_ID = zlib.crc32(b"")

_PIECE = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoOptions:
    """How it answers and how it fails."""

    text: str = ""  # the answer, in place of the prompt's text
    first_token_delay_s: float = 0.0
    token_delay_s: float = 0.0  # between two steps
    tokens_per_step: int = 1  # of each choice
    fail_before: bool = False  # every request, with BackendUnavailable
    fail_after_tokens: int = 0  # every request, with StreamInterrupted; 0 means never
    max_model_len: int = 32_768
    max_concurrent_requests: int = 1_024

    def __post_init__(self) -> None:
        if self.first_token_delay_s < 0 or self.token_delay_s < 0:
            raise ValueError("delays must not be negative")
        if self.tokens_per_step < 1:
            raise ValueError("tokens_per_step must be at least 1")


def split(text: str) -> list[str]:
    """The pieces of a text; joined they are the text."""
    return _PIECE.findall(text)


class EchoBackend:
    """Implements `Backend`, `Tokenizing` and `Resuming`.

    `aborted` holds the ids of requests that were closed before their end.
    """

    def __init__(
        self,
        name: str,
        options: EchoOptions | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.aborted: list[str] = []
        self._name = name
        self._options = options or EchoOptions()
        self._sleep = sleep
        self._clock = clock
        self._is_closed = False
        self._num_running = 0
        self._pauses: set[asyncio.Timeout] = set()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def name(self) -> str:
        return self._name

    async def status(self) -> BackendStatus:
        return BackendStatus(
            state=BackendState.DOWN if self._is_closed else BackendState.READY,
            detail="the backend is closed" if self._is_closed else "",
            model_id="echo",
            max_model_len=self._options.max_model_len,
            max_concurrent_requests=self._options.max_concurrent_requests,
            num_running=self._num_running,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
            engine="echo: says what it was told",
            deterministic=True,
        )

    async def aclose(self) -> None:
        self._is_closed = True
        for pause in self._pauses:
            pause.reschedule(0.0)  # now

    async def count_tokens(self, prompts: tuple[Prompt, ...]) -> int:
        return sum(_count(prompt) for prompt in prompts)

    async def encode(self, prompt: Prompt) -> tuple[EncodedToken, ...]:
        text = _kept_text(prompt)
        _count(prompt)
        return tuple(
            EncodedToken(
                token_id=_token_id(found.group()),
                text=found.group(),
                start=found.start(),
                stop=found.end(),
            )
            for found in _PIECE.finditer(text)
        )

    @property
    def vocabulary(self) -> str:
        return "echo"

    def can_resume(self, request: GenerationRequest) -> bool:
        return request.beams is None and request.sampling.prompt_logprobs is None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        started_s = self._clock()
        deadline_s = started_s + request.timeout_s
        if request.beams is not None:
            raise BackendRejected(
                f"the backend {self._name} (echo) cannot search with beams; remove use_beam_search",
                param="use_beam_search",
            )
        self._admit()
        prompt_tokens = sum(_count(prompt) for prompt in request.prompts)
        choices = self._choices(request)
        self._prompt_tokens += prompt_tokens
        self._num_running += 1
        num_tokens, queue_s = 0, 0.0
        try:
            await self._pause(self._options.first_token_delay_s, num_tokens, deadline_s)
            queue_s = self._clock() - started_s
            if self._clock() >= deadline_s:
                raise DeadlineExceeded("the request's time was over before its first token")
            for number, prompt in enumerate(request.prompts):
                if request.sampling.prompt_logprobs is not None:
                    yield _prompt_logprobs(number, prompt, request.sampling.prompt_logprobs)
            for token in _interleave(choices, self._options.tokens_per_step):
                if token is None:
                    await self._pause(self._options.token_delay_s, num_tokens, deadline_s)
                    if self._clock() >= deadline_s:
                        break
                    continue
                num_tokens += 1
                self._generation_tokens += 1
                yield token
                if num_tokens == self._options.fail_after_tokens:
                    raise StreamInterrupted(f"told to fail after {num_tokens} tokens")
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.append(request.request_id)
            raise
        finally:
            self._num_running -= 1
        yield Finished(
            reasons=tuple(choice.reason for choice in choices),
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=num_tokens + sum(choice.num_given for choice in choices),
            ),
            tails=tuple(choice.cut() for choice in choices),
            queue_s=queue_s,
        )

    def _admit(self) -> None:
        if self._is_closed:
            raise BackendUnavailable("the backend is closed")
        if self._options.fail_before:
            raise BackendUnavailable("told to fail before the first token")
        if self._num_running >= self._options.max_concurrent_requests:
            raise BackendOverloaded(f"{self._num_running} requests are running")

    def _choices(self, request: GenerationRequest) -> list[_Choice]:
        stops = StopStrings(request.stop)
        choices: list[_Choice] = []
        for prompt in request.prompts:
            text = self._options.text or _kept_text(prompt)
            max_tokens = self._max_tokens(request, _count(prompt))
            for _ in range(request.n):
                matcher = StopMatcher(stops, include_stop_str=request.include_stop_str)
                choice = _Choice(len(choices), text, request, max_tokens, matcher)
                if request.resume is not None:
                    choice.resume(request.resume.choices[len(choices)])
                choices.append(choice)
        return choices

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        room = self._options.max_model_len - prompt_tokens
        unlimited = request.max_tokens == UNLIMITED_TOKENS or request.clamp_max_tokens
        if room < 1 or (request.max_tokens > room and not unlimited):
            raise PromptTooLong(
                prompt_tokens=prompt_tokens,
                max_tokens=0 if room < 1 else request.max_tokens,
                max_total_tokens=self._options.max_model_len,
            )
        return min(request.max_tokens, room)

    async def _pause(self, delay_s: float, num_tokens: int, deadline_s: float) -> None:
        """Sleep, if only for a turn of the loop; closing the backend ends it, as does time."""
        delay_s = max(min(delay_s, deadline_s - self._clock()), 0.0)
        pause = asyncio.timeout(None)
        with contextlib.suppress(TimeoutError):
            async with pause:
                self._pauses.add(pause)
                try:
                    await self._sleep(delay_s)
                finally:
                    self._pauses.discard(pause)
        if self._is_closed:
            error = StreamInterrupted if num_tokens else BackendUnavailable
            raise error("the backend is closed")


async def open_backend(spec: BackendSpec) -> EchoBackend:
    """Raises: BackendConfigError: an option is unknown or out of range."""
    return EchoBackend(spec.name, read_options(EchoOptions, spec.options, where=spec.name))


class _Choice:
    """One choice being told."""

    def __init__(
        self,
        index: int,
        text: str,
        request: GenerationRequest,
        max_tokens: int,
        matcher: StopMatcher,
    ) -> None:
        self.reason: FinishReason = FinishReason.DEADLINE if max_tokens else FinishReason.LENGTH
        self.is_done = not max_tokens
        self.num_given = 0  # tokens that were told elsewhere
        self._index = index
        self._sampling = request.sampling
        self._matcher = matcher
        self._left = max_tokens
        self._num_unstoppable = self._sampling.min_tokens  # tokens to come that nothing may end
        pieces = split(text)
        said: Iterator[str] = itertools.cycle(pieces)
        if not self._sampling.ignore_eos:
            num_said = max(len(pieces), self._sampling.min_tokens)
            said = itertools.chain(itertools.islice(said, num_said), [""])
        self._pieces = said

    def next_token(self) -> Token:
        piece = next(self._pieces, "")
        self._left -= 1
        may_stop = not self._num_unstoppable
        self._num_unstoppable = max(self._num_unstoppable - 1, 0)
        text, stop = self._matcher.push(piece, may_stop=may_stop)
        reason = self._finish_reason(piece, stop, may_stop=may_stop)
        if reason is not None:
            self.is_done, self.reason = True, reason
            text += self._matcher.finish()
        entry = _entry(piece)
        sampling = self._sampling
        return Token(
            index=self._index,
            text=text,
            token_id=entry.token_id,
            special=not piece,
            logprob=entry if sampling.logprobs else None,
            top_logprobs=(entry,) if sampling.top_logprobs else (),
            finish_reason=reason,
        )

    def resume(self, so_far: ChoiceSoFar) -> None:
        """Go on behind so many tokens, by the ids that came or else by the text."""
        given = split(so_far.text) if so_far.token_ids is None else so_far.token_ids
        self.num_given = len(given)
        for _ in given:
            self.next_token()
        self.is_done = so_far.finish_reason is not None
        self.reason = so_far.finish_reason or FinishReason.DEADLINE

    def cut(self) -> str:
        """The text still held back, now that no token comes any more."""
        return self._matcher.finish()

    def _finish_reason(
        self, piece: str, stop: str | None, *, may_stop: bool
    ) -> FinishReason | None:
        stops_here = may_stop and _token_id(piece) in self._sampling.stop_token_ids
        if stop is not None or stops_here:
            return FinishReason.STOP
        if not piece and not self._sampling.ignore_eos:
            return FinishReason.EOS
        return None if self._left else FinishReason.LENGTH


def _interleave(choices: list[_Choice], tokens_per_step: int) -> Iterator[Token | None]:
    """All tokens of all choices, as an engine's steps give them; None between two steps."""
    going = choices
    while True:
        for choice in going:
            for _ in range(tokens_per_step):
                if not choice.is_done:
                    yield choice.next_token()
        going = [choice for choice in going if not choice.is_done]
        if not going:
            return
        yield None


def _text(prompt: Prompt) -> str:
    match prompt:
        case ChatPrompt():
            return prompt.messages[-1].content
        case TextPrompt():
            return prompt.text
        case _:
            return " ".join(str(token_id) for token_id in prompt.token_ids)


def _kept_text(prompt: Prompt) -> str:
    """What it answers: the prompt's text, cut at the front as asked."""
    if isinstance(prompt, TextPrompt) and prompt.truncate:
        return "".join(split(prompt.text)[-prompt.truncate :])
    return _text(prompt)


def _count(prompt: Prompt) -> int:
    num_tokens = len(_prompt_pieces(prompt))
    if not num_tokens:
        raise BackendRejected("the prompt is empty; send some text", param="prompt")
    return num_tokens


def _prompt_pieces(prompt: Prompt) -> list[str]:
    if isinstance(prompt, ChatPrompt):
        return [piece for message in prompt.messages for piece in split(message.content)]
    return split(_kept_text(prompt))


def _prompt_logprobs(number: int, prompt: Prompt, top_logprobs: int) -> PromptLogprobs:
    tokens: list[PromptToken] = []
    start = 0
    for piece in _prompt_pieces(prompt):
        entry = _entry(piece)
        is_first = not tokens
        tokens.append(
            PromptToken(
                token_id=entry.token_id,
                text=piece,
                raw=entry.raw,
                start=start,
                logprob=None if is_first else entry.logprob,
                rank=None if is_first else 1,
                top_logprobs=(entry,) if top_logprobs and not is_first else (),
            )
        )
        start += len(piece)
    return PromptLogprobs(prompt=number, tokens=tuple(tokens))


def _entry(piece: str) -> TokenLogprob:
    raw = piece.encode("utf-8", "replace")
    return TokenLogprob(token_id=_token_id(piece), text=piece, raw=raw, logprob=0.0)


def _token_id(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "replace"))
