"""Who holds which KV block, and what the blocks that nobody holds still have in them.

A block is in one of three states:

* used: in the table of one sequence, or of several that begin alike;
* cached: free, but its contents have a name (`prefix_hash`), by which a sequence that begins alike
  finds it. The cached block freed first is the first to be overwritten; a sequence frees its tail
  first, so the beginning of a prefix, which more sequences share, lives longest;
* clean: free and nameless. These are taken before any cached one.

Only full blocks get a name, and only once the step that filled them has succeeded. A used block is
therefore never written to by two, and no table is ever changed in the middle: two equal blocks that
were computed side by side stay two.

Counts blocks, not bytes: the cache itself and the slot arithmetic belong to the runner. Paging
follows PagedAttention (Kwon et al. 2023, arXiv:2309.06180). Block tables only grow while their
sequence runs, so a runner may read them live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from native_engine.prefix_hash import extend_hashes
from native_engine.sequence import Sequence


class FreeList:
    """Free blocks in the order of their reuse, as a doubly linked list laid over two arrays.

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
        """The next to be reused. The list must not be empty."""
        return self._next[self._ends]

    def append(self, block: int) -> None:
        """Add a block that is not in the list, as the last to be reused."""
        self._insert(self._previous[self._ends], block, self._ends)

    def prepend(self, block: int) -> None:
        """Add a block that is not in the list, as the next to be reused."""
        self._insert(self._ends, block, self._next[self._ends])

    def remove(self, block: int) -> None:
        """Take out a block that is in the list."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1

    def _insert(self, before: int, block: int, after: int) -> None:
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._length += 1


class BlockManager:
    """Hands blocks `0 .. num_blocks - 1` to sequences and takes them back."""

    def __init__(self, *, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._ref_counts = [0] * num_blocks  # 0 means: in the free list
        self._free = FreeList(num_blocks)
        self._hashes: list[bytes | None] = [None] * num_blocks  # the names of their contents
        self._blocks: dict[bytes, int] = {}  # the same the other way round

    @property
    def num_free_blocks(self) -> int:
        """Of blocks that can be taken, clean or cached."""
        return len(self._free)

    @property
    def num_named_blocks(self) -> int:
        """Of blocks that can be found by their contents, used or cached."""
        return len(self._blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last perhaps in part."""
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> list[int]:
        """The blocks that hold the sequence's first tokens already. Takes none of them.

        At least one known token is left over, for its logits. Whoever still wants log-probabilities
        of its prompt needs those of every token: for it there are none.
        """
        if not self.prefix_caching or sequence.sampling.num_prompt_logprobs is not None:
            return []
        most = (len(sequence.token_ids) - 1) // self.block_size
        self._extend_hashes(sequence, most)
        found: list[int] = []
        for name in sequence.prefix_hashes[1 : most + 1]:
            block = self._blocks.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def num_used(self, blocks: Iterable[int]) -> int:
        """How many of the blocks are in a table: to share these costs no free block."""
        return sum(1 for block in blocks if self._ref_counts[block])

    def adopt(self, sequence: Sequence, blocks: Iterable[int]) -> None:
        """Begin an empty block table with blocks that `match` has just found."""
        for block in blocks:
            if not self._ref_counts[block]:
                self._free.remove(block)
            self._ref_counts[block] += 1
            sequence.block_table.append(block)

    def allocate(self, sequence: Sequence, count: int) -> None:
        """Append `count` free blocks to the sequence's block table; what they held is forgotten.

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
            self._forget(block)
            table.append(block)

    def publish(self, sequence: Sequence, first: int, stop: int) -> None:
        """Name the blocks at `first : stop` of the sequence's table: they are full and computed.

        Where a name is given already, the block that has it keeps it.
        """
        if not self.prefix_caching:
            return
        self._extend_hashes(sequence, stop)
        for index in range(first, stop):
            block, name = sequence.block_table[index], sequence.prefix_hashes[index + 1]
            if name not in self._blocks:
                self._blocks[name] = block
                self._hashes[block] = name

    def free(self, sequence: Sequence) -> None:
        """Take back all the sequence holds; it holds nothing afterwards, so twice is once.

        The table is replaced, not emptied: a step under way may still be reading it.
        """
        table, sequence.block_table = sequence.block_table, []
        for block in reversed(table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            if self._hashes[block] is None:
                self._free.prepend(block)
            else:
                self._free.append(block)

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Hold the books against the tables of all live sequences. O(num_blocks), for tests.

        Raises:
            AssertionError: a block is lost, free and used at once, misnamed, or shared unnamed.
        """
        sequences = list(sequences)
        references = Counter(block for sequence in sequences for block in sequence.block_table)
        counted = {block: count for block, count in enumerate(self._ref_counts) if count}
        free = list(self._free)
        named = {name: block for block, name in enumerate(self._hashes) if name is not None}
        misnamed = [  # or found under another salt
            (sequence.request_id, block)
            for sequence in sequences
            for index, block in enumerate(sequence.block_table)
            if self._hashes[block] not in (None, *sequence.prefix_hashes[index + 1 : index + 2])
        ]
        shared = [block for block, count in counted.items() if count > 1]
        checks = (
            (counted == references, f"ref counts {counted} are not the tables' {references}"),
            (all(self._hashes[block] for block in shared), f"shared without a name: {shared}"),
            (not misnamed, f"blocks that hold something else: {misnamed}"),
            (named == self._blocks, f"names {named} do not mirror {self._blocks}"),
            (self.prefix_caching or not named, f"named, though nobody may find them: {named}"),
            (free == sorted(free, key=lambda block: self._hashes[block] is not None), "clean last"),
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
        """The block right after the table's last if clean: runs of blocks are read as one slice."""
        if table:
            following = table[-1] + 1
            if (
                following < self.num_blocks
                and not self._ref_counts[following]
                and self._hashes[following] is None
            ):
                return following
        return self._free.head

    def _forget(self, block: int) -> None:
        name, self._hashes[block] = self._hashes[block], None
        if name is not None:
            del self._blocks[name]

    def _extend_hashes(self, sequence: Sequence, num_blocks: int) -> None:
        extend_hashes(
            sequence.prefix_hashes,
            sequence.token_ids,
            block_size=self.block_size,
            num_blocks=num_blocks,
        )
