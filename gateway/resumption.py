"""What the client has of an answer so far, and who could go on with it when its backend cannot.

An answer that is cut in the middle is not begun again: another backend gets the request together
with all that was drawn (`GenerationRequest.resume`), and gives what comes behind. Where ids mean
the same in both, as with two engines of one model, it goes on from the very tokens, and a greedy
answer is the one that an undisturbed backend gives; else from the text.

Knows no policy and no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from backends.base import Backend, Resuming
from backends.types import (
    ChoiceSoFar,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptLogprobs,
    Resumption,
    Token,
)


@dataclass(slots=True)
class _Choice:
    """Of one choice, all that has come."""

    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    finish_reason: FinishReason | None = None


class AnswerSoFar:
    """Of one request, over all attempts. Costs 0.2 us a token."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._choices = [_Choice() for _ in range(request.num_choices)]
        self._vocabulary = ""  # of the backend that gives tokens now
        self._has_ids = True  # whether all token ids are known, and of one vocabulary
        self._has_prompts = False  # whether something was told of the prompts
        self.num_tokens = 0

    @property
    def has_begun(self) -> bool:
        """Whether the client has anything of it."""
        return self.num_tokens > 0 or self._has_prompts

    def begin(self, backend: Backend) -> None:
        """What comes from now on is this backend's."""
        vocabulary = backend.vocabulary if isinstance(backend, Resuming) else ""
        if self.num_tokens and vocabulary != self._vocabulary:
            self._has_ids = False
        self._vocabulary = vocabulary

    def add(self, event: Event) -> None:
        """Take note of what the client gets."""
        match event:
            case Token():
                self.num_tokens += 1
                choice = self._choices[event.index]
                choice.texts.append(event.text)
                if event.token_id is None:
                    self._has_ids = False
                else:
                    choice.token_ids.append(event.token_id)
                choice.finish_reason = event.finish_reason
            case PromptLogprobs():
                self._has_prompts = True
            case Finished():
                pass

    def rest_for(self, backend: Backend) -> GenerationRequest | None:
        """What to ask of a backend, so that the answer becomes whole; None if it cannot go on."""
        if not self.has_begun:
            return self._request
        if not isinstance(backend, Resuming):
            return None
        request = replace(self._request, resume=self._resumption())
        return request if backend.can_resume(request) else None

    def _resumption(self) -> Resumption:
        return Resumption(
            choices=tuple(
                ChoiceSoFar(
                    text="".join(one.texts),
                    token_ids=tuple(one.token_ids) if self._has_ids else None,
                    finish_reason=one.finish_reason,
                )
                for one in self._choices
            ),
            vocabulary=self._vocabulary if self._has_ids else "",
        )
