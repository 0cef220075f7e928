"""Who holds which KV block: reference counts and a free list over a fixed pool.

Counts blocks, not bytes: the cache itself and the slot arithmetic belong to the runner. Paging
follows PagedAttention (Kwon et al. 2023, arXiv:2309.06180). Block tables only grow while their
sequence runs, so a runner may read them live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from native_engine.sequence import Sequence


class FreeList:
    """Free blocks in the order they were freed, as a doubly linked list laid over two arrays.

    Any block is removed in O(1), wherever it stands. The entry after the last block is the list's
    two ends in one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._ends = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._length = num_blocks

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block = self.head
        while block != self._ends:
            yield block
            block = self._next[block]

    @property
    def head(self) -> int:
        """The block that has been free longest. The list must not be empty."""
        return self._next[self._ends]

    def append(self, block: int) -> None:
        """Add a block that is not in the list."""
        last = self._previous[self._ends]
        self._next[last] = block
        self._previous[block] = last
        self._next[block] = self._ends
        self._previous[self._ends] = block
        self._length += 1

    def remove(self, block: int) -> None:
        """Take out a block that is in the list."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1


class BlockManager:
    """Hands blocks `0 .. num_blocks - 1` to sequences and takes them back."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._ref_counts = [0] * num_blocks  # 0 means: in the free list
        self._free = FreeList(num_blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(self, sequence: Sequence, count: int) -> None:
        """Append `count` free blocks to the sequence's block table.

        Raises:
            RuntimeError: fewer are free, and nothing was taken. Ask `num_free_blocks` first.
        """
        if count > len(self._free):
            raise RuntimeError(
                f"{sequence.request_id}: {count} blocks asked for, {len(self._free)} are free"
            )
        table = sequence.block_table
        for _ in range(count):
            block = self._choose(table)
            self._free.remove(block)
            self._ref_counts[block] = 1
            table.append(block)

    def free(self, sequence: Sequence) -> None:
        """Take back all the sequence holds; it holds nothing afterwards, so twice is once.

        The table is replaced, not emptied: a step under way may still be reading it.
        """
        table, sequence.block_table = sequence.block_table, []
        for block in table:
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self._free.append(block)

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Hold the books against the tables of all live sequences. O(num_blocks), for tests.

        Raises:
            AssertionError: a block is lost, free and used at once, or in two tables.
        """
        references = Counter(block for sequence in sequences for block in sequence.block_table)
        counted = {block: count for block, count in enumerate(self._ref_counts) if count}
        free = list(self._free)
        checks = (
            (counted == references, f"ref counts {counted} are not the tables' {references}"),
            (all(count == 1 for count in counted.values()), f"shared blocks: {counted}"),
            (len(free) == len(self._free), "the free list's length is wrong"),
            (
                sorted([*free, *counted]) == list(range(self.num_blocks)),
                f"free {free} and used {counted} do not make up {self.num_blocks} blocks",
            ),
        )
        for holds, message in checks:
            if not holds:
                raise AssertionError(message)

    def _choose(self, table: list[int]) -> int:
        """The block right after the table's last if free: runs of blocks are read as one slice."""
        if table:
            following = table[-1] + 1
            if following < self.num_blocks and not self._ref_counts[following]:
                return following
        return self._free.head
