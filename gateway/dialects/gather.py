"""A drained stream taken apart for an answer in one piece. Knows no wire format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from backends.types import Event, Finished, PromptLogprobs, PromptToken, Token

_LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot say (as vLLM does)


def gather(events: Sequence[Event], num_choices: int) -> tuple[list[list[Token]], Finished]:
    """The tokens of each choice, and the end, of a drained stream.

    The last token of a choice has all the text that was held back until its end.
    """
    choices: list[list[Token]] = [[] for _ in range(num_choices)]
    for event in events:
        match event:
            case Token():
                choices[event.index].append(event)
            case PromptLogprobs():
                pass  # see `gather_prompts`
            case Finished():
                for tokens, tail in zip(choices, event.tails, strict=False):
                    if tail:
                        tokens[-1] = replace(tokens[-1], text=tokens[-1].text + tail)
                return choices, event
    raise TypeError("a drained stream ends with Finished")


def gather_prompts(events: Iterable[Event]) -> dict[int, tuple[PromptToken, ...]]:
    """The tokens of those prompts, by number, whose log-probabilities came."""
    return {event.prompt: event.tokens for event in events if isinstance(event, PromptLogprobs)}


def best_first(choices: Sequence[Sequence[Token]]) -> list[int]:
    """The choices' positions, from the highest mean log-probability of a token to the lowest.

    Of equals the first comes first; a token whose log-probability nobody knows counts as certain. A
    choice without tokens, whose time was over before it had any, comes last.
    """
    return sorted(range(len(choices)), key=lambda index: -_mean_logprob(choices[index]))


def _mean_logprob(tokens: Sequence[Token]) -> float:
    if not tokens:
        return -math.inf
    return fmean(token.logprob.logprob if token.logprob else 0.0 for token in tokens)


def finite(logprob: float) -> float:
    """A log-probability JSON can carry."""
    return max(logprob, _LOWEST_LOGPROB)
