"""Shutting down without cutting anybody off: what state the process is in, and for how long.

`begin` is called on the first SIGTERM: readiness turns false and new requests are refused, while
running ones go on until the drain timeout is over. Knows neither signals nor HTTP nor the clock.
"""

from __future__ import annotations

import math


class Drain:
    """The drain state of one process. Times are monotonic seconds.

    `num_active` counts the requests being served; whoever serves one counts it up and down.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.num_active = 0
        self._deadline_s = math.inf

    @property
    def is_draining(self) -> bool:
        return self._deadline_s < math.inf

    def begin(self, now_s: float) -> None:
        """Refuse new requests from now on. A second call changes nothing."""
        if not self.is_draining:
            self._deadline_s = now_s + self.timeout_s

    def remaining_s(self, now_s: float) -> float:
        """What running requests still have; `inf` while nothing drains."""
        return max(self._deadline_s - now_s, 0.0)

    def is_over(self, now_s: float) -> bool:
        """Whether the process may end: it drains, and nothing runs any more or the time is up."""
        return self.is_draining and (self.num_active == 0 or self.remaining_s(now_s) == 0)
