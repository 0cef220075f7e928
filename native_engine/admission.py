"""Whether a waiting sequence fits: now, and together with those that run until each has ended.

Asks the block manager and takes nothing. The first is exact, the second a guess, which errs without
harm: a sequence that was let in too early is preempted, one too late waits a little. Source of the
guess: the admission of LightLLM (github.com/ModelTC/lightllm), Gong et al., ASPLOS 2025,
arXiv:2507.10150.
"""

from __future__ import annotations

from collections.abc import Iterable

from native_engine.block_manager import BlockManager, Prefix
from native_engine.output_lengths import OutputLengths
from native_engine.sequence import Sequence


class Admission:
    """The arithmetic of blocks that are there and tokens that are to come."""

    def __init__(self, block_manager: BlockManager, output_lengths: OutputLengths) -> None:
        self._block_manager = block_manager
        self._output_lengths = output_lengths

    def missing_blocks(self, sequence: Sequence, prefix: Prefix) -> int:
        """Of those for all its tokens and one more, how many are not free; below 0: to spare.

        `prefix` is what it found.
        """
        block_manager = self._block_manager
        wanted = block_manager.blocks_for(len(sequence.token_ids)) + 1
        wanted = min(wanted, block_manager.num_blocks) - block_manager.num_used(prefix.blocks)
        return wanted - block_manager.num_free_blocks

    def is_expected_to_fit(
        self, sequence: Sequence, prefix: Prefix, running: list[Sequence]
    ) -> bool:
        """Whether it and those of its class and higher ones are likely to reach their ends without
        running out of blocks: lower ones would make room. True if there are none.
        """
        peers = [other for other in running if other.priority >= sequence.priority]
        if not peers:
            return True
        block_manager, block_size = self._block_manager, self._block_manager.block_size
        num_used = block_manager.num_blocks - block_manager.num_free_blocks
        num_common = num_used - sum(other.num_own_blocks for other in running)
        num_blocks = block_manager.blocks_for(len(sequence.token_ids))
        num_blocks -= block_manager.num_used(prefix.blocks)
        loads = [(s.num_own_blocks * block_size, self.expected_outputs(s)) for s in peers]
        loads.append((num_blocks * block_size, self.expected_outputs(sequence)))
        return peak_tokens(loads) <= (block_manager.num_blocks - num_common) * block_size

    def expected_outputs(self, sequence: Sequence) -> int:
        """How many more it is likely to have, never more than it may."""
        most = sequence.max_num_tokens - len(sequence.token_ids)
        if sequence.sampling.ignore_eos:
            return most
        return min(most, self._output_lengths.expect(sequence.tenant, sequence.num_outputs))

    def expected_growth(self, sequence: Sequence) -> int:
        """Blocks that a running one is likely to take until it ends."""
        num_tokens = len(sequence.token_ids) + self.expected_outputs(sequence)
        return max(0, self._block_manager.blocks_for(num_tokens) - len(sequence.block_table))


def peak_tokens(loads: Iterable[tuple[int, int]]) -> int:
    """The most that is used at any time, for `(used, remaining)` tokens of each sequence.

    All gain a token per step, and give all back when their remaining tokens have come. What is used
    is therefore most when one of them ends: then it and those that have longer to go have each
    gained as many as it had remaining.
    """
    peak = total_used = 0
    longest_first = sorted(loads, key=lambda load: load[1], reverse=True)
    for count, (used, remaining) in enumerate(longest_first, start=1):
        total_used += used
        peak = max(peak, total_used + count * remaining)
    return peak
