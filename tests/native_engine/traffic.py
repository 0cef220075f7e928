"""Random traffic, read off bytes.

A property draws one byte string for a whole workload: as cheap as a draw of one small number, and
bytes that shrink make traffic that shrinks. Where the bytes end there are zeros, and zero is the
plainest choice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from native_engine.types import EngineRequest, LogitRules, SamplingParams

T = TypeVar("T")

VOCAB_SIZE = 20  # small: eos and stop ids do come up
MAX_PROMPT = 14  # without its tail
STEMS = tuple(
    tuple(random.Random(seed).choices(range(VOCAB_SIZE), k=MAX_PROMPT)) for seed in range(8)
)
COUNTED = LogitRules(presence_penalty=1.0)  # so that a runner is shown the history

TENANTS = (("", 1.0), ("", 1.0), ("light", 1.0), ("heavy", 3.0))  # with their weights

Family = tuple[EngineRequest, ...]  # the first, and those to be forked from it
Moment = tuple[str, int]  # what happens at a step, and to which of those it can happen to


class Choices:
    """Small decisions, one byte each."""

    def __init__(self, raw: bytes) -> None:
        self._rest = iter(raw)

    def below(self, limit: int) -> int:
        """One of 0 .. limit - 1; at most 256 of them."""
        return next(self._rest, 0) % limit

    def of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


def families_of(raw: bytes) -> list[Family]:
    """One to 20 families, still without ids; many begin alike."""
    choices = Choices(raw)
    return [_family(choices) for _ in range(1 + choices.below(20))]


def _family(choices: Choices) -> Family:
    """One request in most; choices of one prompt in some, each with a seed of its own."""
    first = _request(choices)
    count = choices.of((1, 1, 1, 1, 1, 1, 2, 4))
    return tuple(
        replace(first, sampling=_sibling(choices, first.sampling, index)) if index else first
        for index in range(count)
    )


def _sibling(choices: Choices, first: SamplingParams, index: int) -> SamplingParams:
    """That it asks about the prompt too is allowed, though it then cannot be forked."""
    asked = choices.of((None, first.num_prompt_logprobs))
    return replace(first, seed=first.seed + index, num_prompt_logprobs=asked)


def _request(choices: Choices) -> EngineRequest:
    stem = choices.of((*STEMS, *STEMS[:2], *STEMS[:2], *STEMS[:2]))
    length = 1 + choices.below(len(stem))
    tail = [choices.below(VOCAB_SIZE) for _ in range(choices.below(3))]
    tenant, weight = choices.of(TENANTS)
    return EngineRequest(
        request_id="",
        prompt_token_ids=(*stem[:length], *tail),
        sampling=SamplingParams(
            max_tokens=(1 + choices.below(32)) % 32,  # 1 to 31, and none
            temperature=choices.of((0.0, 1.0)),
            seed=choices.below(4),
            eos_token_ids=choices.of(((), (), (), (0,), (0, 1))),
            stop_token_ids=choices.of(((), (), (), (2,))),
            ignore_eos=choices.of((False, True)),
            rules=choices.of((None, None, None, COUNTED)),
            num_prompt_logprobs=choices.of((None, None, None, 0)),
        ),
        cache_salt=choices.of(("", "", "other")),
        tenant=tenant,
        weight=weight,
        priority=choices.of((0, 0, 0, 1, 3)),
        timeout_s=choices.of((None, None, None, None, None, 0.0, 1.0, 4.0)),
    )


def moments_of(raw: bytes, odds: Sequence[tuple[str, int]]) -> list[Moment]:
    """One a byte. Of 256 bytes each event of `odds` takes so many, the highest first; the rest are
    plain steps.
    """
    events = [event for event, count in odds for _ in range(count)]
    kinds = [*["step"] * (256 - len(events)), *events]
    return [(kinds[byte], byte) for byte in raw]
