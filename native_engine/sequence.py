"""One request on its way through the engine: its tokens, how far they are computed, its blocks.

Knows neither the scheduler's rules nor the device. Position p of a sequence is that of its p-th
known token: the prompt's come first, then those generated.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from native_engine.drafter import Drafter
from native_engine.fairness import INPUT_COST, Account
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
    num_given_outputs: int = 0  # so many outputs came with the request
    tenant: str = ""  # whose turn it is, and whose the cached blocks become that it computes
    weight: float = 1.0  # of its tenant's share
    priority: int = 0  # of its class: higher ones first
    deadline_s: float = math.inf  # the engine's clock
    parent: Sequence | None = None  # begins with the same prompt: forked instead of computed anew
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0  # so many leading tokens have their KV in the blocks
    block_table: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_cached_tokens: int | None = None  # of the prompt, cached when it was first admitted
    is_forked: bool = False  # its prompt was its parent's, computed and counted there
    was_held_back: bool = False  # for a step, to find in the cache what a neighbour computed in it
    num_charged_tokens: int = 0  # so many leading prompt tokens are its tenant's affair no more
    num_shared_blocks: int = 0  # of its table, those that others held when it came
    num_bypasses: int = 0  # so many went before it while it was the head and did not fit
    rank: tuple[float, int] = (0.0, 0)  # least for the first in order among those that run
    standing: int = 0  # the class it counted as when it got in: its own, or a higher one by age
    account: Account = field(init=False, repr=False)  # its tenant's, from the scheduler
    queue_s: float | None = None  # set when its first step has been computed
    drafter: Drafter | None = None  # set once its tokens have been guessed ahead
    history: TokenHistory | None = None  # a view of `token_ids`, if `sampling` looks back on it
    prompt_logprobs: list[PromptLogprob] = field(default_factory=list)  # those not handed out yet

    def __post_init__(self) -> None:
        if self.sampling.rules is not None or self.sampling.num_prompt_logprobs is not None:
            self.history = TokenHistory(
                token_ids=self.token_ids, num_prompt_tokens=self.num_prompt_tokens
            )

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_drawn(self) -> int:
        """Outputs that were drawn here."""
        return self.num_outputs - self.num_given_outputs

    @property
    def num_uncomputed_tokens(self) -> int:
        """Of those that are known; never 0."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_own_blocks(self) -> int:
        """Blocks that it took for itself, though others may have joined it since."""
        return len(self.block_table) - self.num_shared_blocks

    @property
    def prompt_charge(self) -> float:
        """What its tenant owes for the rest of the prompt, if nothing of it is found cached."""
        return (self.num_prompt_tokens - self.num_charged_tokens) * INPUT_COST / self.weight

    def cover_computed(self) -> None:
        """What is computed of the prompt, by whomever, is not to be charged from now on."""
        covered = min(self.num_computed_tokens, self.num_prompt_tokens)
        self.num_charged_tokens = max(self.num_charged_tokens, covered)

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
