"""A circuit breaker: who has failed several times in a row is left alone for a while.

Closed, it lets everything pass. After so many failures without a success in between it opens: for a
time nothing passes. Then it is half open: one request goes as a probe, and only when that has ended
well do the others follow. Source: M. Nygard, "Release It!", stability patterns.

Reads no clock and draws no number: both are arguments. Knows no backend.
"""

from __future__ import annotations

import enum

from gateway.policy.model import BreakerRule

JITTER = 0.2
"""Of a cooldown, what is added at most, so that several gateways do not probe at one moment."""

MAX_DOUBLINGS = 4
"""A probe that fails doubles the cooldown, so many times at most: 10 s become 160 s."""


class Passage(enum.Enum):
    """What an attempt goes as."""

    PLAIN = "plain"
    PROBE = "probe"


class End(enum.Enum):
    """How an attempt ended, as far as it speaks for or against its backend."""

    WELL = "well"
    BADLY = "badly"
    SILENTLY = "silently"  # the client left, asked for something wrong, or the backend was full


class Breaker:
    """Of one backend. It is told of each attempt's beginning and end."""

    def __init__(self, rule: BreakerRule) -> None:
        self._rule = rule
        self._num_failures = 0  # since the last success
        self._opened_until_s: float | None = None
        self._num_doublings = 0
        self._is_probing = False

    def wait_s(self, now_s: float) -> float:
        """How long nothing passes; 0 if something does."""
        if self._opened_until_s is None:
            return 0.0
        if self._is_probing:
            return self._rule.cooldown_s
        return max(self._opened_until_s - now_s, 0.0)

    def is_open(self, now_s: float) -> bool:
        """Whether nothing passes."""
        return self.wait_s(now_s) > 0.0

    def begin(self, now_s: float) -> Passage | None:
        """What an attempt goes as, which its end is told with; None if it must not be made."""
        if self.is_open(now_s):
            return None
        if self._opened_until_s is None:
            return Passage.PLAIN
        self._is_probing = True
        return Passage.PROBE

    def end(self, passage: Passage, end: End, now_s: float, luck: float) -> None:
        """An attempt is over. `luck` is a draw from [0, 1).

        One that began before the circuit opened has no say in whether it closes.
        """
        is_probe = passage is Passage.PROBE
        if is_probe:
            self._is_probing = False
        elif self._opened_until_s is not None:
            return
        match end:
            case End.WELL:
                self._num_failures = self._num_doublings = 0
                self._opened_until_s = None
            case End.BADLY:
                self._fail(is_probe, now_s, luck)
            case End.SILENTLY:
                pass  # if it was the probe, the next one is

    def _fail(self, is_probe: bool, now_s: float, luck: float) -> None:
        self._num_failures += 1
        if is_probe:
            self._num_doublings = min(self._num_doublings + 1, MAX_DOUBLINGS)
        elif self._num_failures < self._rule.failures:
            return
        cooldown_s = self._rule.cooldown_s * 2**self._num_doublings
        self._opened_until_s = now_s + cooldown_s * (1.0 + JITTER * luck)
