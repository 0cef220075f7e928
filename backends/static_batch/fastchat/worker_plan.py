"""One request at one worker: what each choice asks of it, and how far each answer has come.

Knows no connections and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass

from backends.errors import PromptTooLong
from backends.static_batch.fastchat.controller_protocol import Frame
from backends.static_batch.fastchat.conversation import RenderedChat
from backends.static_batch.fastchat.worker_answer import CHARACTERS_PER_TOKEN, WorkerAnswer
from backends.static_batch.fastchat.worker_params import DEFAULT_MAX_NEW_TOKENS, worker_params
from backends.text.stop import StopMatcher, StopStrings
from backends.types import (
    UNLIMITED_TOKENS,
    Finished,
    FinishReason,
    GenerationRequest,
    Token,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPrompt:
    """A prompt as the worker gets it."""

    chat: RenderedChat
    prompt_tokens: int  # by the worker's own count; 0: it cannot count


class Plan:
    """What is asked of a worker, and the answers so far."""

    def __init__(
        self,
        request: GenerationRequest,
        model: str,
        address: str,
        prompts: list[PlannedPrompt],
        context_length: int | None,
    ) -> None:
        """context_length: None if the worker does not know.

        Raises:
            PromptTooLong: a prompt leaves no room, or not what was asked for.
        """
        self.address = address
        self._request = request
        self._model = model
        self._prompts = prompts
        self._limits = [
            _max_new_tokens(request, prompt.prompt_tokens, context_length) for prompt in prompts
        ]
        stops = StopStrings(request.stop)
        # a worker says "stop" for its model's own end, and for a stop token id of the client
        own = FinishReason.STOP if request.sampling.stop_token_ids else FinishReason.EOS
        self._answers = [
            WorkerAnswer(
                index,
                StopMatcher(stops, include_stop_str=request.include_stop_str),
                max_new_tokens=self._limits[index // request.n],
                stop_reason=own,
            )
            for index in range(request.num_choices)
        ]
        for answer in self._answers:
            if not request.max_tokens:
                answer.reason = FinishReason.LENGTH

    @property
    def is_done(self) -> bool:
        return all(answer.reason is not None for answer in self._answers)

    @property
    def has_token(self) -> bool:
        """Whether anything has come of any choice."""
        return any(answer.has_token for answer in self._answers)

    @property
    def ended_choices(self) -> list[int]:
        return [i for i, answer in enumerate(self._answers) if answer.reason is not None]

    def params(self) -> Iterator[bytes]:
        """The body for each choice that has not ended, in order: all of them, or none."""
        for index in range(self._request.num_choices):
            prompt = index // self._request.n
            chat = self._prompts[prompt].chat
            if self._answers[index].reason is None:
                yield worker_params(
                    self._request,
                    chat.prompt,
                    model=self._model,
                    choice=index,
                    max_new_tokens=self._limits[prompt],
                    stop=chat.stop,
                    stop_token_ids=chat.stop_token_ids,
                )

    def push(self, frames: Mapping[int, Frame], ended: AbstractSet[int]) -> Iterator[Token]:
        """The tokens that frames let out, by choice; `ended` choices get no more of them.

        Raises:
            BackendError: see `WorkerAnswer`.
        """
        for index, frame in frames.items():
            if self._answers[index].reason is None:
                token = self._answers[index].push(frame)
                if token is not None:
                    yield token
        for index in ended:
            token = self._answers[index].end()
            if token is not None:
                yield token

    def finished(self) -> Finished:
        """The end; time is over for choices that have not ended."""
        tails = tuple("" if a.reason is not None else a.cut() for a in self._answers)
        return Finished(
            reasons=tuple(a.reason or FinishReason.DEADLINE for a in self._answers),
            usage=self._usage(),
            tails=tails if any(tails) else (),
        )

    def _usage(self) -> Usage:
        prompts = [self._prompt_tokens(place) for place in range(len(self._prompts))]
        counted = [answer.completion_tokens for answer in self._answers]
        guesses = [
            guess for answer in self._answers if (guess := answer.estimated_tokens) is not None
        ]
        return Usage(
            prompt_tokens=sum(tokens for tokens, _ in prompts),
            completion_tokens=sum(tokens or 0 for tokens in counted) + sum(guesses),
            estimated=bool(guesses) or any(is_guess for _, is_guess in prompts),
        )

    def _prompt_tokens(self, place: int) -> tuple[int, bool]:
        """How many, and whether it is a guess, as the worker counted neither before nor after."""
        told = self._answers[place * self._request.n].prompt_tokens
        counted = told or self._prompts[place].prompt_tokens
        if counted:
            return counted, False
        return math.ceil(len(self._prompts[place].chat.prompt) / CHARACTERS_PER_TOKEN), True


def _max_new_tokens(
    request: GenerationRequest, prompt_tokens: int, context_length: int | None
) -> int:
    """What to ask for so that the worker cuts nothing off the prompt's front, as it would."""
    wanted = request.max_tokens
    if context_length is None:
        return DEFAULT_MAX_NEW_TOKENS if wanted == UNLIMITED_TOKENS else wanted
    # FastChat keeps context - max_new - 1 tokens of a prompt, one less than there is room for.
    fitting = context_length - 1
    room = fitting - prompt_tokens
    is_firm = wanted != UNLIMITED_TOKENS and not request.clamp_max_tokens
    if room < 1 or (is_firm and wanted > room):
        raise PromptTooLong(
            prompt_tokens=prompt_tokens,
            max_tokens=wanted if room >= 1 else 0,
            max_total_tokens=fitting,
        )
    return min(wanted, room)
