"""How many tokens of prompts a step may take beside its decodes to last so long, learnt from the
steps that ran.

Seconds = those of the decodes alone + a cost per token of a prompt. Both are medians of the last
`WINDOW` steps, so two of five may be disturbed without harm: of steps without prompts, kept apart
by powers of two of their decodes, and of what steps with prompts took beyond that, per token. Only
the last count, as a token costs the more, the more it looks back on: a line through all sizes of
steps, which remembered longer, let steps beside a prompt of 1,000 tokens take a quarter more than
they should.

Knows no clock and no sequences.
"""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 5
DECAY = 0.98
"""Of what a step weighs in the throughput, for each step since."""


class StepCost:
    """Observes steps, and says how large one may be to take so long, and how fast work is done."""

    def __init__(self) -> None:
        self._decodes: dict[int, deque[float]] = {}  # seconds, by the bit length of their number
        self._prefills: deque[tuple[int, int, float]] = deque(maxlen=WINDOW)
        self._tokens = self._seconds = 0.0  # of the last steps

    def observe(
        self,
        num_decode_tokens: int,
        num_prefill_tokens: int,
        seconds: float,
        *,
        num_rejected_tokens: int = 0,
    ) -> None:
        """Learn from a step. One that took no time, by a coarse clock, teaches nothing.

        num_rejected_tokens: of the decodes', drafts that were wrong. They took time like all, and
        brought nothing on.
        """
        if seconds <= 0:
            return
        num_useful_tokens = num_decode_tokens + num_prefill_tokens - num_rejected_tokens
        self._tokens = self._tokens * DECAY + num_useful_tokens
        self._seconds = self._seconds * DECAY + seconds
        if num_prefill_tokens:
            self._prefills.append((num_decode_tokens, num_prefill_tokens, seconds))
            return
        window = self._decodes.get(num_decode_tokens.bit_length())
        if window is None:
            window = self._decodes[num_decode_tokens.bit_length()] = deque(maxlen=WINDOW)
        window.append(seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last steps, of whatever kinds; None before the first."""
        return self._tokens / self._seconds if self._seconds else None

    def prefill_tokens_within(self, seconds: float, num_decode_tokens: int) -> int | None:
        """Tokens of prompts that a step with these decodes may take; None: no limit is known."""
        if not self._prefills:
            return None
        token_s = statistics.median(
            max(0.0, step_s - self._decodes_s(decodes)) / tokens
            for decodes, tokens, step_s in self._prefills
        )
        left_s = max(0.0, seconds - self._decodes_s(num_decode_tokens))
        return int(left_s / token_s) if token_s else None

    def _decodes_s(self, num_decode_tokens: int) -> float:
        """Seconds of so many alone, as of the most similar number that ran; 0 if none did."""
        if not num_decode_tokens or not self._decodes:
            return 0.0
        size = num_decode_tokens.bit_length()
        return statistics.median(self._decodes[min(self._decodes, key=lambda b: abs(b - size))])
