"""One request on its way through the engine: its tokens, how far they are computed, its blocks.

Knows neither the scheduler's rules nor the device. Position p of a sequence is that of its p-th
known token: the prompt's come first, then those generated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from native_engine.types import SamplingParams, TokenHistory


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
    tenant: str = ""  # whose cached blocks those that it computes become
    parent: Sequence | None = None  # begins with the same prompt: forked instead of computed anew
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0  # so many leading tokens have their KV in the blocks
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_cached_tokens: int | None = None  # found in the cache when it was first admitted
    is_forked: bool = False  # its prompt was its parent's, computed and counted there
    was_held_back: bool = False  # for a step, to find in the cache what a neighbour computed in it
    queue_s: float | None = None  # set when its first step has been computed
    history: TokenHistory | None = None  # a view of `token_ids`, if `sampling` has rules

    def __post_init__(self) -> None:
        if self.sampling.rules is not None:
            self.history = TokenHistory(
                token_ids=self.token_ids, num_prompt_tokens=self.num_prompt_tokens
            )

    @property
    def waits_for_parent(self) -> bool:
        """Whether the parent is on its way to all but the last of the sequence's tokens.

        Not if it was preempted: it may be long in coming back.
        """
        parent = self.parent
        return (
            parent is not None
            and parent.status is not SequenceStatus.FINISHED
            and not parent.num_preemptions
            and parent.num_computed_tokens < len(self.token_ids) - 1
        )
