"""Sequences without an engine, for tests of the rules that choose among them."""

from __future__ import annotations

import itertools
import math

from native_engine.fairness import Account
from native_engine.sequence import Sequence
from native_engine.types import SamplingParams

_ARRIVALS = itertools.count()


def make_sequence(
    name: str = "a",
    *,
    account: Account | None = None,
    prompt: int = 4,
    priority: int = 0,
    added_s: float = 0.0,
    timeout_s: float = math.inf,
    num_preemptions: int = 0,
    num_blocks: int = 0,
    aging_s: float = 10.0,
) -> Sequence:
    """One that arrived after all that were made before it."""
    arrival = next(_ARRIVALS)
    sequence = Sequence(
        request_id=name,
        sampling=SamplingParams(max_tokens=10),
        arrival=arrival,
        added_s=added_s,
        token_ids=[1] * prompt,
        num_prompt_tokens=prompt,
        max_num_tokens=prompt + 10,
        prefix_hashes=[b""],
        priority=priority,
        deadline_s=added_s + timeout_s,
        num_preemptions=num_preemptions,
        block_table=list(range(num_blocks)),
        standing=priority,
        rank=(added_s - priority * aging_s, arrival),
    )
    sequence.account = account or Account("", 0.0)
    return sequence
