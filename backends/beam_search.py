"""Beam search over the answers to one prompt: which partial answers to go on with, and when to end.

Pure: told the likeliest next tokens of each live beam, it keeps the `width` best that go on, and
those that ended. The rules are those of transformers' `generate` with `early_stopping=False`: an
answer that ends counts only if it is among the `width` best candidates of its step, with a score
of its log-probability / its length ** length_penalty, the end token included; the search is over
when no live beam, ended now, would beat the worst of `width` ended ones.

Knows no engine and no text. Source: Wu et al., arXiv:1609.08144, section 7, for the length penalty
in the simpler form that transformers took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from backends.types import BeamParams
from native_engine.types import FinishReason, SampledToken


@dataclass(frozen=True, slots=True)
class Beam:
    """A partial answer, or a whole one with the reason for its end."""

    tokens: tuple[SampledToken, ...] = ()
    logprob: float = 0.0  # of all its tokens together
    reason: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        """What beams are ranked by. It must have a token."""
        return self.logprob / math.pow(len(self.tokens), length_penalty)


class BeamSearch:
    """The beams of one prompt. `live` go on, in order of their log-probability."""

    def __init__(
        self,
        params: BeamParams,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        eos_token_ids: Sequence[int] = (),
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """max_tokens: at least 1. No answer ends within its first `min_tokens`."""
        self.live: tuple[Beam, ...] = (Beam(),)
        self._params = params
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._ends = dict.fromkeys(stop_token_ids, FinishReason.STOP)
        self._ends |= dict.fromkeys(eos_token_ids, FinishReason.EOS)
        self._ended: list[Beam] = []  # the best, at most `width`

    @property
    def num_candidates(self) -> int:
        """How many of the likeliest tokens behind each beam must be known: enough that `width` of
        them do not end it.
        """
        return self._params.width + len(self._ends)

    def advance(self, candidates: Sequence[Sequence[SampledToken]]) -> None:
        """Take the step. `candidates[i]` follow `live[i]`; each token has its `logprob`."""
        found = [
            Beam((*beam.tokens, token), beam.logprob + token.logprob)
            for beam, following in zip(self.live, candidates, strict=True)
            for token in following
            if token.logprob is not None and self._may_come(beam, token)
        ]
        found.sort(key=lambda beam: -beam.logprob)
        width = self._params.width
        going_on: list[Beam] = []
        for rank, beam in enumerate(found):
            reason = self._reason(beam)
            if reason is None:
                going_on.append(beam)
            elif rank < width:
                self._ended.append(Beam(beam.tokens, beam.logprob, reason))
        self._ended = self._best(self._ended)
        self.live = tuple(going_on[:width])
        if self._is_over():
            self.live = ()

    def best(self, count: int) -> list[Beam]:
        """The `count` best answers, best first. Those that live still are among them, as they are,
        without a reason; there must be tokens.
        """
        return self._best([*self._ended, *self.live])[:count]

    def _may_come(self, beam: Beam, token: SampledToken) -> bool:
        return len(beam.tokens) >= self._min_tokens or token.token_id not in self._ends

    def _reason(self, beam: Beam) -> FinishReason | None:
        reason = self._ends.get(beam.tokens[-1].token_id)
        if reason is None and len(beam.tokens) == self._max_tokens:
            return FinishReason.LENGTH
        return reason

    def _best(self, beams: list[Beam]) -> list[Beam]:
        penalty = self._params.length_penalty
        return sorted(beams, key=lambda beam: -beam.score(penalty))[: self._params.width]

    def _is_over(self) -> bool:
        if len(self._ended) < self._params.width or not self.live:
            return not self.live
        penalty = self._params.length_penalty
        return self.live[0].score(penalty) <= self._ended[-1].score(penalty)
