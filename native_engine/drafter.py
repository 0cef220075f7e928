"""How far ahead one sequence guesses, by how its last guesses fared.

A guess that came true whole doubles the next; one that failed half way sets it to what would have
held and one more. One that failed at once is paid for by a pause, twice as long each time in a row:
a sequence that never repeats itself soon costs nothing, one that begins to is found out later.
Knows neither steps nor blocks, and no clock: it counts tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from native_engine.prompt_lookup import PromptLookup

FIRST_LENGTH = 2
"""Tokens of the first guess. With 3, the same chat has 41 of 153 guesses right, with 2 of 121."""

MAX_PAUSE = 64
"""Tokens; 1, 2, 4, ... before it. 16 makes no difference to answers of 200 tokens."""


class Drafter:
    """Guesses for one sequence, whose own list of tokens it reads."""

    __slots__ = ("_length", "_lookup", "_num_failures", "_resume_at", "_token_ids")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids
        self._lookup = PromptLookup(token_ids)
        self._length = FIRST_LENGTH
        self._num_failures = 0  # in a row
        self._resume_at = 0  # known tokens

    def guess(self, most: int) -> list[int]:
        """The next tokens, at most so many; none while it pauses or knows of none."""
        count = min(most, self._length)
        if count < 1 or len(self._token_ids) < self._resume_at:
            return []
        return self._lookup.guess(count)

    def record(self, num_drafts: int, num_accepted: int) -> None:
        """What came of the last guess; the tokens drawn are known by now."""
        if num_accepted == num_drafts:
            self._length = max(self._length, 2 * num_drafts)
            self._num_failures = 0
        elif num_accepted:
            self._length = num_accepted + 1
            self._num_failures = 0
        else:
            self._length = FIRST_LENGTH
            pause = min(1 << self._num_failures, MAX_PAUSE)
            self._resume_at = len(self._token_ids) + pause
            self._num_failures += 1
