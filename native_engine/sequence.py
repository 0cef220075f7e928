"""One request on its way through the engine: its tokens, how far they are computed, its blocks.

Knows neither the scheduler's rules nor the device. Position p of a sequence is that of its p-th
known token: the prompt's come first, then those generated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from native_engine.types import PromptLogprob, SamplingParams, TokenHistory


class SequenceStatus(enum.Enum):
    """Where a sequence stands. A preempted one is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """The mutable state of one request; two are equal only if they are the same object."""

    request_id: str
    sampling: SamplingParams
    arrival: int  # order of add(), never reused
    added_s: float  # the engine's clock at add()
    token_ids: list[int]  # all known tokens: prompt, then outputs; only ever appended to
    num_prompt_tokens: int
    max_num_tokens: int  # the sequence ends when so many tokens are known
    prefix_hashes: list[bytes]  # of its first 0, 1, 2, ... blocks, as far as they were needed
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0  # so many leading tokens have their KV in the blocks
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_cached_tokens: int | None = None  # found in the cache when it was first admitted
    was_held_back: bool = False  # for a step, to find in the cache what a neighbour computed in it
    queue_s: float | None = None  # set when its first step has been computed
    history: TokenHistory | None = None  # a view of `token_ids`, if `sampling` looks back on it
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)  # those not handed out yet

    def __post_init__(self) -> None:
        if self.sampling.rules is not None or self.sampling.num_prompt_logprobs is not None:
            self.history = TokenHistory(
                token_ids=self.token_ids, num_prompt_tokens=self.num_prompt_tokens
            )
