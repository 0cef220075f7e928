"""A drained stream taken apart for an answer in one piece. Knows no wire format."""

from __future__ import annotations

from collections.abc import Sequence

from backends.types import Event, Finished, Token

_LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say (as vLLM does)


def gather(events: Sequence[Event], num_choices: int) -> tuple[list[list[Token]], Finished]:
    """The tokens of each choice, and the end, of a drained stream."""
    choices: list[list[Token]] = [[] for _ in range(num_choices)]
    for event in events:
        if isinstance(event, Finished):
            return choices, event
        choices[event.index].append(event)
    raise TypeError("a drained stream ends with Finished")


def finite(logprob: float) -> float:
    """A log-probability JSON can carry."""
    return max(logprob, _LOWEST_LOGPROB)
