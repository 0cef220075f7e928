"""A clock that goes where it is told."""

from __future__ import annotations


class FakeClock:
    """Seconds from a fixed point; call it to read it."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
