"""How long a step takes for so many tokens, learnt from the steps that ran.

Seconds = base + slope * tokens: reading the weights costs the same for one token as for many, and
each token adds its share, be it a decode or part of a prompt. A step of SmolLM2-135M on one core
follows it within MEASURED_ERROR.

Steps are kept in one bin per power of two of their tokens, the last `WINDOW` of each, and a bin
counts by its median: two steps of five may be disturbed without harm, and a thousand plain decodes
do not drown the ten prefills that tell the slope. Errors count in proportion, so the small steps,
which a target is about, are met best. Knows no clock and no sequences.
"""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 5
"""Steps that a median is of. While a long prompt is computed its steps get slower, as each token
looks back on more: with 9 the guess was a fifth behind at the end of 1,000 tokens."""

DECAY = 0.98
"""Of what a step weighs in the throughput, for each step since."""


class StepCost:
    """Observes steps, and says how large one may be to take so long, and how fast work is done."""

    def __init__(self) -> None:
        self._bins: dict[int, deque[tuple[int, float]]] = {}
        self._line: tuple[float, float] | None = None
        self._is_fitted = True
        self._tokens = self._seconds = 0.0  # of the last steps

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step. One that took no time, by a coarse clock, teaches nothing."""
        if seconds <= 0:
            return
        window = self._bins.get(num_tokens.bit_length())
        if window is None:
            window = self._bins[num_tokens.bit_length()] = deque(maxlen=WINDOW)
        window.append((num_tokens, seconds))
        self._is_fitted = False
        self._tokens = self._tokens * DECAY + num_tokens
        self._seconds = self._seconds * DECAY + seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last steps, of whatever sizes; None before the first."""
        return self._tokens / self._seconds if self._seconds else None

    def tokens_within(self, seconds: float) -> int | None:
        """Tokens of a step that takes so long, perhaps none; None while nothing is known."""
        if not self._is_fitted:
            self._line = self._fit()
            self._is_fitted = True
        if self._line is None:
            return None
        base, slope = self._line
        return max(0, int((seconds - base) / slope))

    def _fit(self) -> tuple[float, float] | None:
        """Base and slope by least squares of the relative errors. None unless steps of two sizes
        ran, the larger slower.
        """
        points = [
            (
                statistics.median(tokens for tokens, _ in window),
                statistics.median(seconds for _, seconds in window),
            )
            for window in self._bins.values()
        ]
        weights = [seconds**-2 for _, seconds in points]
        total = sum(weights)
        mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
        mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
        spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
        common = sum(
            w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)
        )
        if common <= 0:
            return None
        slope = common / spread
        return max(0.0, mean_y - slope * mean_x), slope
