"""How much may be tried again: a share of what is tried at all, so that retries never make a storm.

A bucket: each first attempt puts a share of a token in, each repeated one takes a whole token out.
Source: gRPC's retry throttling (gRFC A6); the reserve lets a quiet backend have its first retries.

Pure. Knows no time: what a minute of traffic has put in, the next may take out.
"""

from __future__ import annotations

RESERVE = 3.0
"""What is in it at first, and what it can save up beside `CAPACITY` times the share."""

CAPACITY = 100.0


class RetryBudget:
    """Of one backend."""

    def __init__(self) -> None:
        self._tokens = RESERVE

    def deposit(self, share: float) -> None:
        """A first attempt is made."""
        self._tokens = min(self._tokens + share, RESERVE + CAPACITY * share)

    def withdraw(self) -> bool:
        """Whether a repeated attempt may be made; if so, it is counted."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
