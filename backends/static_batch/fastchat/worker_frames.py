"""One answer as a FastChat worker tells it: a backend's events in, frames out.

A frame's text is the whole answer so far, never a difference, and so are its log-probabilities.
Pure: knows no engine, no socket and no clock.

Source: FastChat 0.2.36, `serve/inference.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.static_batch.fastchat.worker_protocol import Frame, GenerateParams
from backends.types import (
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    Token,
    TokenLogprob,
)

_LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say


class AnswerFrames:
    """One answer as it grows: a backend's events in, frames out."""

    def __init__(
        self, params: GenerateParams, *, echoed: str, prompt_tokens: int, stream_interval: int
    ) -> None:
        """echoed: the text in front of the answer. stream_interval: tokens from frame to frame."""
        self._text = echoed
        self._shown = ""
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._stream_interval = stream_interval
        self._logprobs = None if params.logprobs is None else _LogprobLists()

    def push(self, event: Event) -> Sequence[Frame]:
        """The frames that are due with this event.

        The end is told apart from the last of the text, by a frame of its own: FastChat's API
        server makes OpenAI's empty last delta of it.
        """
        match event:
            case PromptLogprobs():
                if self._logprobs is not None:
                    for told in event.tokens:
                        self._logprobs.add(told.text, told.logprob, told.top_logprobs)
                return ()
            case Token():
                self._text += event.text
                self._completion_tokens += 1
                if self._logprobs is not None and event.logprob is not None:
                    chosen = event.logprob
                    self._logprobs.add(chosen.text, chosen.logprob, event.top_logprobs)
                is_due = (self._completion_tokens - 1) % self._stream_interval == 0
                return (self._frame(None),) if is_due else ()
            case Finished():
                self._text += "".join(event.tails)
                grown = (self._frame(None),) if self._text != self._shown else ()
                ends_early = event.reasons[0] in (FinishReason.EOS, FinishReason.STOP)
                return (*grown, self._frame("stop" if ends_early else "length"))

    def _frame(self, finish_reason: str | None) -> Frame:
        self._shown = self._text
        return {
            "text": self._text,
            "error_code": 0,
            "usage": {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._completion_tokens,
                "total_tokens": self._prompt_tokens + self._completion_tokens,
            },
            "finish_reason": finish_reason,
            "logprobs": None if self._logprobs is None else self._logprobs.copy(),
        }


class _LogprobLists:
    """FastChat's parallel lists, over all tokens so far, those of an echoed prompt in front."""

    def __init__(self) -> None:
        self._num_chars = 0
        self._text_offset: list[int] = []
        self._token_logprobs: list[float | None] = []
        self._tokens: list[str] = []
        self._top_logprobs: list[dict[str, float]] = []

    def add(self, text: str, logprob: float | None, likeliest: Sequence[TokenLogprob]) -> None:
        """`text` is the token decoded alone; of the first of a prompt no logprob is known."""
        self._text_offset.append(self._num_chars)
        self._num_chars += len(text)
        self._tokens.append(text)
        self._token_logprobs.append(None if logprob is None else _finite(logprob))
        top: dict[str, float] = {}
        for one in likeliest:  # two may look alike: the likelier, which comes first, is shown
            top.setdefault(one.text, _finite(one.logprob))
        self._top_logprobs.append(top)

    def copy(self) -> dict[str, object]:
        return {
            "text_offset": self._text_offset.copy(),
            "token_logprobs": self._token_logprobs.copy(),
            "tokens": self._tokens.copy(),
            "top_logprobs": self._top_logprobs.copy(),
        }


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST_LOGPROB)
