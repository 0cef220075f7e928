"""Whether a backend that failed is asked once more before the next one is, and how long after.

Only before anything of the answer has come, only while the budget has something, and never of a
request that is wrong. tenacity turns the loop; the rules are here. Source: "Exponential backoff and
jitter", AWS Architecture Blog (equal jitter); RFC 9110, 10.2.3 (Retry-After).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    stop_any,
)
from tenacity.stop import stop_base

from backends.errors import BackendOverloaded
from gateway.policy.model import Retry
from gateway.resilience.budget import RetryBudget
from gateway.resilience.failures import FAILURES, kind_of

BASE_S, CAP_S = 0.25, 8.0
"""The waits before jitter: a quarter of a second, then twice as long each time, up to the cap. What
asks for more than the cap is not waited for: another backend, or the client, does better.
"""

RETRIED = ("connect", "429", "5xx")
"""A timeout is not: it has taken most of the time there was."""


class _When(stop_base):
    """A rule of ours as one of tenacity's."""

    def __init__(self, holds: Callable[[RetryCallState], bool]) -> None:
        self._holds = holds

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self._holds(retry_state)


def retrying(
    rule: Retry,
    budget: RetryBudget,
    *,
    left_s: float,
    has_begun: Callable[[], bool],
    sleep: Callable[[float], Awaitable[None]],
    seed: int,
) -> AsyncRetrying:
    """The attempts on one backend, as an asynchronous iterator of tenacity's.

    `left_s` is all the time that the request has; `seed` makes the jitter.
    """
    luck = random.Random(seed)

    def is_worth_it(error: BaseException) -> bool:
        if not isinstance(error, FAILURES) or has_begun():
            return False
        return kind_of(error, has_begun=False) in RETRIED

    def wait_s(state: RetryCallState) -> float:
        backoff_s: float = min(CAP_S, BASE_S * 2.0 ** (state.attempt_number - 1))
        error = state.outcome.exception() if state.outcome else None
        asked_s = error.retry_after_s if isinstance(error, BackendOverloaded) else 0.0
        return max(asked_s, backoff_s * (1.0 + luck.random()) / 2)

    def is_too_late(state: RetryCallState) -> bool:
        return state.upcoming_sleep > CAP_S or state.upcoming_sleep >= left_s

    def is_spent(_: RetryCallState) -> bool:
        return not budget.withdraw()

    return AsyncRetrying(
        retry=retry_if_exception(is_worth_it),
        wait=wait_s,
        stop=stop_any(stop_after_attempt(rule.num_attempts), _When(is_too_late), _When(is_spent)),
        sleep=sleep,
        reraise=True,
    )
