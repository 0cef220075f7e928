"""One choice's answer as a worker's frames tell it: cumulative text in, tokens out.

A worker decodes its answer anew for each frame, and a later text need not begin with an earlier
one. Two kinds of that are known, and what they may still change is held back: U+FFFD at the end,
which stands for a character that is not complete, and the tidying of transformers' decoders, which
takes out the space before punctuation and short forms once they are complete: "it '" becomes
"it's". Any other change of text that is already out is an error of the worker's.

The client's stop strings are looked for here and not by the worker, which looks for the last one
in place of the first and does not say whether it found any. Knows no connections.
"""

from __future__ import annotations

import math
import re

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    StreamInterrupted,
)
from backends.static_batch.fastchat.controller_protocol import Frame, UsageJson
from backends.static_batch.fastchat.error_codes import ErrorCode
from backends.text.stop import StopMatcher
from backends.types import FinishReason, Token

# The beginnings of " .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've" and " 're" that are
# not the whole, or U+FFFD.
_UNSETTLED = re.compile(r"(?: (?:'[vr]?|n'?)?|\ufffd+)\Z")

CHARACTERS_PER_TOKEN = 4.0
"""English prose in common vocabularies."""


class WorkerAnswer:
    """Reads the frames of one choice, in order; any of them may be left out but the last."""

    def __init__(
        self,
        index: int,
        matcher: StopMatcher,
        *,
        max_new_tokens: int,
        stop_reason: FinishReason = FinishReason.EOS,
    ) -> None:
        """stop_reason: what a worker's "stop" stands for.

        max_new_tokens: what was asked of it.
        """
        self.reason: FinishReason | None = None  # until it has ended
        self.has_token = False
        self._index = index
        self._matcher = matcher
        self._max_new_tokens = max_new_tokens
        self._stop_reason = stop_reason
        self._shown = 0  # characters of `_text` that went to the matcher
        self._text = ""
        self._usage: UsageJson | None = None
        self._has_frame = False

    @property
    def prompt_tokens(self) -> int | None:
        """What the worker counted, if it did."""
        return None if self._usage is None else self._usage.prompt_tokens

    @property
    def completion_tokens(self) -> int | None:
        """What the worker counted, if it did."""
        return None if self._usage is None else self._usage.completion_tokens

    @property
    def estimated_tokens(self) -> int | None:
        """By the length of the text; None if the worker counted, or there is nothing to count."""
        if self._usage is not None or not self._text:
            return None
        return math.ceil(len(self._text) / CHARACTERS_PER_TOKEN)

    def push(self, frame: Frame) -> Token | None:
        """What the answer grows by. May only be called before the end.

        Raises:
            BackendError: the worker reports one, or takes back text that is already out.
        """
        if frame.error_code:
            raise error_of(frame)
        if not frame.text.startswith(self._text[: self._shown]):
            raise BackendProtocolError("the worker changed text that was already sent on")
        self._text, self._usage = frame.text, frame.usage or self._usage
        self._has_frame = True
        reason = self._reason_of(frame)
        unsettled = None if reason else _UNSETTLED.search(self._text, self._shown)
        return self._grow(unsettled.start() if unsettled else len(self._text), reason)

    def end(self) -> Token | None:
        """The worker hung up in good order. It may have said before why it ended.

        Raises:
            BackendProtocolError: it never said anything.
        """
        if self.reason is not None:
            return None
        if not self._has_frame:
            raise BackendProtocolError("the worker hung up without a word")
        is_full = (self.completion_tokens or 0) >= self._max_new_tokens
        return self._grow(len(self._text), FinishReason.LENGTH if is_full else self._stop_reason)

    def cut(self) -> str:
        """The text still held back, now that time is over."""
        text, _ = self._matcher.push(self._text[self._shown :])
        self.reason = FinishReason.DEADLINE
        return text + self._matcher.finish() if self.has_token else ""

    def _grow(self, settled: int, reason: FinishReason | None) -> Token | None:
        """Send the matcher all up to `settled`, if that is more than before."""
        text, stop = self._matcher.push(self._text[self._shown : max(settled, self._shown)])
        self._shown = max(settled, self._shown)
        if stop is not None:
            reason = FinishReason.STOP
        elif reason is not None:
            text += self._matcher.finish()
        if not text and reason is None:
            return None
        self.reason, self.has_token = reason, True
        return Token(index=self._index, text=text, finish_reason=reason)

    def _reason_of(self, frame: Frame) -> FinishReason | None:
        match frame.finish_reason:
            case None:
                return None
            case "stop":
                return self._stop_reason
            case "length":
                return FinishReason.LENGTH
            case "abort":
                raise StreamInterrupted("the worker gave up the request")
            case other:
                raise BackendProtocolError(f"the worker finished with {other[:40]!r}")


def error_of(frame: Frame) -> BackendError:
    """What a frame with an error code means here."""
    message = f"the worker answered with error {frame.error_code}: {frame.text:.300}"
    match frame.error_code:
        case ErrorCode.CONTEXT_OVERFLOW:
            return BackendRejected(message, param="prompt")
        case (
            ErrorCode.VALIDATION_TYPE_ERROR | ErrorCode.INVALID_MODEL | ErrorCode.PARAM_OUT_OF_RANGE
        ):
            return BackendRejected(message)
        case (
            ErrorCode.RATE_LIMIT
            | ErrorCode.QUOTA_EXCEEDED
            | ErrorCode.ENGINE_OVERLOADED
            | ErrorCode.CUDA_OUT_OF_MEMORY
        ):
            return BackendOverloaded(message)
        case ErrorCode.WORKER_TIMEOUT:
            return BackendTimeout(message)
        case _:
            return BackendUnavailable(message)
