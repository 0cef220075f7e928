"""The answer to one request as it comes: an engine's outputs in, the gateway's events out.

Keeps the order that `backends.base` promises: a prompt's log-probabilities come before the tokens
of its choices. Only the first choice of a prompt computes them, and another may be faster; its
tokens wait. Knows no processes and no wire formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from backends.errors import DeadlineExceeded
from backends.messages import Output
from backends.text.choice import ChoiceDecoder
from backends.types import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    PromptToken,
    Token,
    Usage,
)
from native_engine import types as engine

PromptWriter = Callable[[int, Sequence[engine.PromptLogprob]], tuple[PromptToken, ...]]
"""Makes the tokens of the prompt of that number."""


class Answer:
    """Takes every output of a request's sequences, in order."""

    def __init__(
        self,
        request: GenerationRequest,
        choices: Mapping[str, ChoiceDecoder],
        write_prompt: PromptWriter | None = None,
        *,
        num_given_tokens: int = 0,
    ) -> None:
        """choices: those that go on, by the id of their sequence. write_prompt: if prompts are
        asked about. num_given_tokens: of all choices, those that came with `request.resume`.
        """
        self._num_each = request.n
        self._choices = dict(choices)  # those that have not ended
        self._write_prompt = write_prompt
        self._held: dict[int, list[Token]] = {}  # by prompt, until its log-probabilities come
        if write_prompt is not None:
            self._held = {prompt: [] for prompt in range(len(request.prompts))}
        self._reasons = [FinishReason.LENGTH] * request.num_choices
        if request.resume is not None:
            self._reasons = [
                one.finish_reason or FinishReason.LENGTH for one in request.resume.choices
            ]
        self._tails: dict[int, str] = {}  # of the choices that ran out of time
        self._completion_tokens = num_given_tokens
        self._cached_tokens = 0
        self._queue_s: float | None = None  # of the first output of all

    def awaits(self, request_id: str) -> bool:
        """Whether more of this sequence is wanted."""
        return request_id in self._choices

    def push(self, output: Output) -> Sequence[Event]:
        """The events that an output lets out: none, if it comes behind a stop string, since the
        engine had not heard of that yet.
        """
        choice = self._choices.get(output.request_id)
        if choice is None:
            return ()
        if self._queue_s is None:
            self._queue_s = output.queue_s
        if output.cached_tokens and choice.index % self._num_each == 0:
            self._cached_tokens += output.cached_tokens  # once per prompt
        opened: Sequence[Event] = ()
        if output.prompt_logprobs is not None:
            opened = self._open(choice.index // self._num_each, output.prompt_logprobs)
        if output.token is None:
            reason = FinishReason.LENGTH  # it wanted none
            if output.finish_reason is engine.FinishReason.DEADLINE:
                self._tails[choice.index], reason = choice.cut()
            self._end(output.request_id, reason)
            return opened
        token = choice.push(output.token, output.finish_reason)
        self._completion_tokens += 1
        if token.finish_reason is not None:
            self._end(output.request_id, token.finish_reason)
        held = self._held.get(token.index // self._num_each) if self._held else None
        if held is not None:
            held.append(token)
            return opened
        return (*opened, token)

    def finished(self, prompt_tokens: int) -> Finished:
        """The last event, once nothing is awaited any more.

        Raises:
            DeadlineExceeded: time was over before there was anything of use.
        """
        if self._tails and (self._held or not self._completion_tokens):
            raise DeadlineExceeded("the request's time was over before its first token")
        tails = tuple(self._tails.get(index, "") for index in range(len(self._reasons)))
        return Finished(
            reasons=tuple(self._reasons),
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=self._completion_tokens,
                cached_tokens=self._cached_tokens,
            ),
            tails=tails if self._tails else (),
            queue_s=self._queue_s or 0.0,
        )

    def _open(self, prompt: int, logprobs: Sequence[engine.PromptLogprob]) -> Sequence[Event]:
        if self._write_prompt is None:
            return ()
        event = PromptLogprobs(prompt=prompt, tokens=self._write_prompt(prompt, logprobs))
        return (event, *self._held.pop(prompt, ()))

    def _end(self, request_id: str, reason: FinishReason) -> None:
        self._reasons[self._choices.pop(request_id).index] = reason
