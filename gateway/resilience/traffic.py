"""What this process has seen of each backend: how busy it is, how fast it begins, how it fails.

The one mutable thing that decisions depend on, and only through the `Health` it makes of it. Keyed
by names of the policy, so it is bounded by it. No I/O; time and luck are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from backends.base import BackendState
from gateway.policy.choose import BackendHealth, Health
from gateway.policy.model import BackendConfig, BreakerRule
from gateway.resilience.breaker import Breaker, End, Passage
from gateway.resilience.budget import RetryBudget

SMOOTHING = 0.2
"""The weight of the newest time to a first token in the mean: about the last ten count."""


class Ticket(NamedTuple):
    """One attempt that is under way."""

    config: BackendConfig
    passage: Passage
    began_s: float


class _Seen:
    """Of one backend."""

    def __init__(self, rule: BreakerRule | None) -> None:
        self.num_in_flight = 0
        self.first_token_s = 0.0
        self.budget = RetryBudget()
        self.breaker = Breaker(rule) if rule else None


class Traffic:
    """Of all backends. It is told of each attempt's beginning and end."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def health(
        self, configs: Mapping[str, BackendConfig], states: Mapping[str, BackendState], now_s: float
    ) -> Health:
        """What is known of the backends of a policy: their own word, and what was seen."""
        return {name: self._health(configs[name], state, now_s) for name, state in states.items()}

    def begin(self, config: BackendConfig, now_s: float) -> Ticket | None:
        """An attempt is made, whose end must be told; None if it must not be."""
        seen = self._of(config)
        passage = Passage.PLAIN if seen.breaker is None else seen.breaker.begin(now_s)
        if passage is None:
            return None
        seen.num_in_flight += 1
        return Ticket(config, passage, now_s)

    def note_first_token(self, ticket: Ticket, now_s: float) -> None:
        """An attempt has begun to give something."""
        seen, wait_s = self._of(ticket.config), now_s - ticket.began_s
        if seen.first_token_s:
            seen.first_token_s += SMOOTHING * (wait_s - seen.first_token_s)
        else:
            seen.first_token_s = wait_s

    def end(self, ticket: Ticket, end: End, now_s: float, luck: float) -> None:
        """An attempt is over. `luck` is a draw from [0, 1)."""
        seen = self._of(ticket.config)
        seen.num_in_flight -= 1
        if seen.breaker is not None:
            seen.breaker.end(ticket.passage, end, now_s, luck)

    def budget(self, config: BackendConfig) -> RetryBudget:
        """Of how often a backend may be asked again."""
        return self._of(config).budget

    def wait_s(self, configs: Iterable[BackendConfig], now_s: float) -> float:
        """Until one of these can be tried, as far as their circuits say."""
        breakers = [self._of(config).breaker for config in configs]
        return min((each.wait_s(now_s) if each else 0.0 for each in breakers), default=0.0)

    def num_in_flight(self, name: str) -> int:
        """Attempts on a backend that have not ended."""
        return self._seen[name].num_in_flight if name in self._seen else 0

    def _health(self, config: BackendConfig, state: BackendState, now_s: float) -> BackendHealth:
        seen = self._of(config)
        why = ""
        if seen.breaker is not None and seen.breaker.is_open(now_s):
            state, why = BackendState.DOWN, "its circuit is open, for it failed of late"
        return BackendHealth(state, seen.num_in_flight, seen.first_token_s, why)

    def _of(self, config: BackendConfig) -> _Seen:
        seen = self._seen.get(config.name)
        if seen is None:
            seen = self._seen[config.name] = _Seen(config.breaker)
        return seen
