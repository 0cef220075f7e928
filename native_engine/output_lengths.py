"""How many more tokens a sequence will generate, guessed from those that ended before it.

The lengths of the last outputs of a tenant, and of all tenants, are kept. A sequence with n outputs
is one of those that get longer than n, so it is expected to get as long as a quantile of these. The
quantile follows what comes of it: a preemption for want of blocks says that the guesses were too
low, and raises it; each sequence that ends lowers it a little.

Knows neither blocks nor sequences. Source: the idea of Gong et al., "Past-Future Scheduler for LLM
Serving under SLA Guarantees", ASPLOS 2025, arXiv:2507.10150.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque

WINDOW = 64
"""Outputs that are remembered per tenant: what was usual an hour ago says little."""
ENOUGH = 8
"""Outputs that must be known of a tenant before they say more than those of all tenants."""
UNKNOWN_LENGTH = 256
"""What an output is taken to be until enough have ended: a usual answer in a chat."""
MAX_TENANTS = 1024
"""Tenants whose outputs are remembered: the ones whose last ended last. 1 MB at most."""

LEAST_QUANTILE, MOST_QUANTILE = 0.5, 0.95
RAISE = 0.05
LOWER = 0.0025
"""A twentieth of RAISE: at rest where one sequence in twenty is preempted."""


class OutputLengths:
    """Learns from outputs that ended and from preemptions; guesses what is left of others."""

    def __init__(self) -> None:
        self.quantile = 0.75
        self._all = _Window()
        self._tenants: OrderedDict[str, _Window] = OrderedDict()

    def record_end(self, tenant: str, num_outputs: int) -> None:
        """Learn from a sequence that ended with `num_outputs` tokens, at least one."""
        self._all.append(num_outputs)
        self._tenants.setdefault(tenant, _Window()).append(num_outputs)
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        self.quantile = max(self.quantile - LOWER, LEAST_QUANTILE)

    def record_preemption(self) -> None:
        """Learn that blocks ran out."""
        self.quantile = min(self.quantile + RAISE, MOST_QUANTILE)

    def expect(self, tenant: str, num_outputs: int) -> int:
        """Tokens that a sequence will generate beyond the `num_outputs` it has; at least one.

        One that outlives all that are remembered is expected to get as long again.
        """
        window = self._tenants.get(tenant)
        if window is None or len(window.lengths) < ENOUGH:
            window = self._all
        if len(window.lengths) < ENOUGH:
            total = UNKNOWN_LENGTH
        else:
            total = window.quantile_beyond(num_outputs, self.quantile)
        return total - num_outputs if total > num_outputs else max(num_outputs, 1)


class _Window:
    """The last lengths, in the order they came and in order of size."""

    __slots__ = ("_recent", "lengths")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self.lengths: list[int] = []

    def append(self, length: int) -> None:
        if len(self._recent) == WINDOW:
            del self.lengths[bisect.bisect_left(self.lengths, self._recent.popleft())]
        self._recent.append(length)
        bisect.insort(self.lengths, length)

    def quantile_beyond(self, least: int, quantile: float) -> int:
        """The quantile of the lengths above `least`, or 0 if there are none."""
        lengths = self.lengths
        start = bisect.bisect_right(lengths, least)
        if start == len(lengths):
            return 0
        return lengths[start + int(quantile * (len(lengths) - start))]
