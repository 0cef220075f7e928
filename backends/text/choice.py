"""One choice of an answer: an engine's sampled tokens in, the gateway's `Token` events out.

Every sampled token gives exactly one event; its text may be empty while a character or a possible
stop string is unfinished. A stop string found in the text ends the choice, whatever reason the
engine gives for the same token. Special tokens are no part of the text; one whose own text equals a
stop string ends the choice like that stop. A choice that ends without a token gives no event.

Knows nothing of requests, processes or wire formats.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.text.detokenizer import Detokenizer
from backends.text.logprobs import token_logprob
from backends.text.stop import NO_STOPS, StopMatcher, StopStrings
from backends.text.tokenizer import Tokenizer
from backends.types import FinishReason, Token
from native_engine import types as engine


class ChoiceDecoder:
    """Turns the tokens of one choice into events, in order, until one has a finish reason.

    If that comes before the engine's own end (`push` was given no reason), the caller aborts the
    sequence and drops what the engine may still send for it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        index: int,
        stops: StopStrings = NO_STOPS,
        include_stop_str: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """No stop string that is complete within the first `min_tokens` ends the choice."""
        self.index = index
        self._tokenizer = tokenizer
        self._stops = stops
        self._include_stop_str = include_stop_str
        self._num_unstoppable = min_tokens  # tokens to come that no stop string may end
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stops, include_stop_str=include_stop_str)
        self._owed = ""  # text that goes in front of the next token's
        self._num_given = 0  # characters to come that the reader has already

    def resume(self, token_ids: Sequence[int], text: str) -> None:
        """Go on behind these, of which the reader has `text`: before anything is pushed.

        If they are the very tokens that gave that text, all is as if they had been pushed here.
        Else they are another spelling of it: what follows is fitted to what the reader has.
        """
        shown = ""
        for token_id in token_ids:
            self._num_unstoppable = max(self._num_unstoppable - 1, 0)
            shown += self._matcher.push(self._detokenizer.push(token_id), may_stop=False)[0]
        self._owed = shown[len(text) :]
        self._num_given = max(len(text) - len(shown), 0)

    def push(self, sampled: engine.SampledToken, reason: engine.FinishReason | None) -> Token:
        """The event for one token; `reason` is the engine's, with its last token.

        The last event carries all the text that was held back.
        """
        token_id = sampled.token_id
        special = self._tokenizer.is_special(token_id)
        may_stop = not self._num_unstoppable
        if not may_stop:
            self._num_unstoppable -= 1
        text, stop = self._matcher.push(self._detokenizer.push(token_id), may_stop=may_stop)
        special_stop = self._special_stop(token_id) if special and may_stop else None
        if stop is None and (special_stop is not None or reason is not None):
            tail, stop = self._flush(special_stop, may_stop=may_stop)
            text += tail
        text = self._fitted(text)
        finish_reason = None
        if stop is not None:
            finish_reason = FinishReason.STOP
        elif reason is not None:
            finish_reason = FinishReason(reason.value)
        return Token(
            index=self.index,
            text=text,
            token_id=token_id,
            special=special,
            logprob=None
            if sampled.logprob is None
            else token_logprob(self._tokenizer, token_id, sampled.logprob),
            top_logprobs=tuple(token_logprob(self._tokenizer, *p) for p in sampled.top_logprobs),
            finish_reason=finish_reason,
        )

    def cut(self) -> tuple[str, FinishReason]:
        """(the text held back, why the choice ends) when its time is over and no token comes."""
        text, stop = self._flush(None, may_stop=not self._num_unstoppable)
        return self._fitted(text), FinishReason.DEADLINE if stop is None else FinishReason.STOP

    def _fitted(self, text: str) -> str:
        """The text as the reader misses it, who may have some of it, or owe some from before."""
        if not self._owed and not self._num_given:
            return text
        fitted = self._owed + text[self._num_given :]
        self._num_given = max(self._num_given - len(text), 0)
        self._owed = ""
        return fitted

    def _special_stop(self, token_id: int) -> str | None:
        text = self._tokenizer.token_text(token_id)
        return text if text in self._stops.strings else None

    def _flush(self, special_stop: str | None, *, may_stop: bool) -> tuple[str, str | None]:
        """(the rest of the text, the stop string that ends it).

        The rest goes through the matcher like all text before it, so a stop string that it
        completes comes before one that a special token spells.
        """
        text, stop = self._matcher.push(self._detokenizer.finish(), may_stop=may_stop)
        if stop is not None:
            return text, stop
        text += self._matcher.finish()
        if special_stop is not None and self._include_stop_str:
            text += special_stop
        return text, special_stop
