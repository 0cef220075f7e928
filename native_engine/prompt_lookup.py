"""Guesses a sequence's next tokens: what followed the last time its latest tokens came up.

An n-gram of MIN_NGRAM tokens is looked up in an index of all earlier ones; of the latest few places
where it stood, the one that agrees with the sequence's end furthest back is copied from. Answers
that quote, summarise or edit their prompt repeat it for long stretches. The index grows with the
sequence and depends on its tokens alone: a preemption has nothing to restore.

At 2,000 tokens of context a new token and a guess take 5 us, at 500 as at 8,000 no less and little
more; matching the reversed tail by KMP walks all of it each time, which takes Python 360 us.
Indexing a prompt of 2,000 tokens takes 0.5 ms, once. (Measured on a busy machine.)

Knows neither steps nor whether its guesses came true: see `drafts`. Sources: Saxena, "Prompt Lookup
Decoding", 2023; Yang et al., "Inference with Reference" (LLMA), arXiv:2304.04487.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_NGRAM = 3
"""Tokens that must agree. Of SmolLM2's chat at temperature 0.7, replayed: 49 of 228 guesses right
with 2, 41 of 121 with 3, 21 of 60 with 4."""

MAX_NGRAM = 8
"""Agreement beyond it makes no place better."""

MAX_PLACES = 8
"""So many places are compared, the latest ones: a common n-gram must not cost more than a rare."""


class PromptLookup:
    """The index of one sequence."""

    __slots__ = ("_earlier", "_latest", "_token_ids")

    def __init__(self, token_ids: Sequence[int]) -> None:
        """`token_ids` is the sequence's own list: only ever appended to, and read at `guess`."""
        self._token_ids = token_ids
        self._latest: dict[tuple[int, ...], int] = {}  # n-gram -> position after its latest place
        self._earlier: list[int] = [
            0
        ] * MIN_NGRAM  # position -> the same for the place before; 0: none

    def guess(self, count: int) -> list[int]:
        """The next `count` tokens, or none where the last few never came up before.

        A copy that reaches the end of the sequence goes on in itself, as a period does.
        """
        self._index_new_tokens()
        position = self._best_place()
        if not position:
            return []
        copied = list(self._token_ids[position : position + count])
        return (copied * -(-count // len(copied)))[:count]

    def _index_new_tokens(self) -> None:
        token_ids, latest, earlier = self._token_ids, self._latest, self._earlier
        for position in range(len(earlier), len(token_ids)):
            ngram = tuple(token_ids[position - MIN_NGRAM : position])
            earlier.append(latest.get(ngram, 0))
            latest[ngram] = position

    def _best_place(self) -> int:
        """The position after it; 0 if there is none."""
        end = len(self._token_ids)
        position = self._latest.get(tuple(self._token_ids[-MIN_NGRAM:]), 0)
        best, longest = 0, 0
        for _ in range(MAX_PLACES):
            if not position or longest == MAX_NGRAM:
                break
            length = self._agreement(position, end)
            if length > longest:
                best, longest = position, length
            position = self._earlier[position]
        return best

    def _agreement(self, position: int, end: int) -> int:
        """How many tokens before `position` are those before `end`, up to MAX_NGRAM."""
        token_ids = self._token_ids
        length = MIN_NGRAM
        most = min(MAX_NGRAM, position)
        while length < most and token_ids[position - length - 1] == token_ids[end - length - 1]:
            length += 1
        return length
