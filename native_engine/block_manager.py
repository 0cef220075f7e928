"""Who holds which KV block, and what the blocks that nobody holds still have in them.

A block is in one of three states:

* used: in the table of one sequence, or of several that begin alike;
* cached: free, but its contents have a name (`prefix_hash`), by which a sequence that begins alike
  finds it. The cached block freed first is the first to be overwritten (`free_blocks` knows the
  exception); a sequence frees its tail first, so the beginning of a prefix, which more sequences
  share, lives longest;
* clean: free and nameless. These are taken before any cached one.

Only full blocks get a name, and only once the step that filled them has succeeded. Only full blocks
are shared: by name, or by forking, which gives the child a copy of the block that is filled in
part. A shared block is therefore never written to, and no table is ever changed in the middle: two
equal blocks that were computed side by side stay two.

Copies are made by the device at the beginning of the next step, in the order in which they were
asked for. So a source may be freed, and taken and written by another, as soon as it was asked for.

Counts blocks, not bytes: the cache itself and the slot arithmetic belong to the runner. Paging and
forking follow PagedAttention (Kwon et al. 2023, arXiv:2309.06180). During a step, block tables only
grow while their sequence runs, so a runner may read them live; `trim` belongs between two steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from native_engine.free_blocks import FreeBlocks
from native_engine.prefix_hash import extend_hashes
from native_engine.sequence import Sequence, SequenceStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What is computed already of a sequence's first tokens, and where."""

    num_tokens: int
    blocks: list[int]  # full ones, to be shared
    partial: int | None = None  # has the tokens behind theirs, and others: to be copied
    is_forked: bool = False  # its parent's, not what was found by its contents


class BlockManager:
    """Hands blocks `0 .. num_blocks - 1` to sequences and takes them back."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        max_cached_share: float = 1.0,
    ) -> None:
        """max_cached_share: see `FreeBlocks`."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"num_blocks ({num_blocks}) and block_size ({block_size}) must be at least 1"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._ref_counts = [0] * num_blocks  # 0 means: free
        self._free = FreeBlocks(num_blocks, max_cached_share=max_cached_share)
        self._hashes: list[bytes | None] = [None] * num_blocks  # the names of their contents
        self._blocks: dict[bytes, int] = {}  # the same the other way round
        self._publishers = [""] * num_blocks  # the tenants who computed what has a name
        self._copies: list[tuple[int, int]] = []  # (from, to), for the next step
        self._is_step_running = False
        self._deferred: list[list[int]] = []  # tables freed since it began

    @property
    def num_free_blocks(self) -> int:
        """Of blocks that can be taken, clean or cached."""
        return len(self._free)

    @property
    def num_clean_blocks(self) -> int:
        """Of blocks that can be taken without forgetting what they hold."""
        return len(self._free.clean)

    @property
    def num_named_blocks(self) -> int:
        """Of blocks that can be found by their contents, used or cached."""
        return len(self._blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last perhaps in part."""
        return -(-num_tokens // self.block_size)

    def match(self, sequence: Sequence) -> Prefix:
        """What is computed of the sequence's first tokens already. Takes no block.

        A parent that has computed all but the last of them is forked; else the blocks of earlier
        sequences are looked for. At least one known token is left over, for its logits. Whoever
        still wants log-probabilities of its prompt needs those of every token: for it there is
        nothing.
        """
        if sequence.sampling.num_prompt_logprobs is not None:
            return Prefix(num_tokens=0, blocks=[])
        parent = sequence.parent
        if (
            parent is not None
            and parent.status is SequenceStatus.RUNNING
            and parent.num_computed_tokens >= len(sequence.token_ids) - 1
        ):
            return self._forked(parent, sequence)
        found: list[int] = []
        if self.prefix_caching:
            most = (len(sequence.token_ids) - 1) // self.block_size
            self._extend_hashes(sequence, most)
            for name in sequence.prefix_hashes[1 : most + 1]:
                block = self._blocks.get(name)
                if block is None:
                    break
                found.append(block)
        return Prefix(num_tokens=len(found) * self.block_size, blocks=found)

    def num_used(self, blocks: Iterable[int]) -> int:
        """How many of the blocks are in a table: to share these costs no free block."""
        return sum(1 for block in blocks if self._ref_counts[block])

    def adopt(self, sequence: Sequence, prefix: Prefix) -> None:
        """Begin an empty block table with what `match` has just found.

        Raises:
            RuntimeError: there is a partial block to be copied, and none is free to copy it to.
        """
        for block in prefix.blocks:
            if not self._ref_counts[block]:
                self._free.remove(block)
            self._ref_counts[block] += 1
            sequence.block_table.append(block)
        if prefix.partial is not None:
            self.allocate(sequence, 1)
            self._copies.append((prefix.partial, sequence.block_table[-1]))
        sequence.num_computed_tokens = prefix.num_tokens

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give a child that holds nothing what the parent has computed of the tokens both begin
        with, all of the child's but its last at most.

        Both go on writing to blocks of their own, and so may other children of the same parent.

        Raises:
            RuntimeError: as `adopt`. One free block is enough.
        """
        self.adopt(child, self._forked(parent, child))

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
                self._publishers[block] = sequence.tenant

    def free(self, sequence: Sequence) -> None:
        """Take back all the sequence holds; it holds nothing afterwards, so twice is once.

        The table is replaced, not emptied: a step under way may still be reading it.
        """
        table, sequence.block_table = sequence.block_table, []
        if self._is_step_running:
            self._deferred.append(table)
        else:
            self._release(table)

    def begin_step(self) -> tuple[tuple[int, int], ...]:
        """Hand out the copies that the step has to begin with. Until `end_step` no block becomes
        free, for the step may be writing to it.
        """
        copies = tuple(self._copies)
        self._copies.clear()
        self._is_step_running = True
        return copies

    def end_step(self) -> None:
        """The step has succeeded or failed; either way it writes no more."""
        self._is_step_running = False
        for table in self._deferred:
            self._release(table)
        self._deferred.clear()

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks past the sequence's known tokens. They are its own, and nameless."""
        table = sequence.block_table
        num_kept = self.blocks_for(len(sequence.token_ids))
        self._release(table[num_kept:])
        del table[num_kept:]

    def check_invariants(self, sequences: Iterable[Sequence]) -> None:
        """Hold the books against the tables of all live sequences. O(num_blocks), for tests.

        Raises:
            AssertionError: a block is lost, free and used at once, misnamed, or shared although it
            is not full.
        """
        references = [0] * self.num_blocks
        hashes, ref_counts = self._hashes, self._ref_counts
        for table in self._deferred:
            for block in table:
                references[block] += 1
        for sequence in sequences:
            names = sequence.prefix_hashes
            first_written = sequence.num_computed_tokens // self.block_size
            for index, block in enumerate(sequence.block_table):
                references[block] += 1
                if ref_counts[block] > 1 and index >= first_written:
                    raise AssertionError(f"shared, and {sequence} will write to it: {block}")
                name = hashes[block]  # of something else, or found under another salt?
                if name is not None and name not in names[index + 1 : index + 2]:
                    raise AssertionError(f"block {block} of {sequence} holds something else")
        clean, cached = list(self._free.clean), list(self._free.cached)
        used = [block for block, count in enumerate(references) if count]
        found = self._blocks
        checks = (
            (references == ref_counts, "ref counts are not the tables'"),
            (
                len(found) == len(hashes) - hashes.count(None)
                and all(hashes[block] == name for name, block in found.items()),
                "names do not mirror what is found by them",
            ),
            (self.prefix_caching or not found, "named, though nobody may find them"),
            (not any(map(hashes.__getitem__, clean)), "clean with a name"),
            (all(map(hashes.__getitem__, cached)), "cached without a name"),
            (len(self._free) == len(clean) + len(cached), "the number of free blocks is wrong"),
            (
                len(clean) + len(cached) + len(used) == self.num_blocks
                and len({*clean, *cached, *used}) == self.num_blocks,
                "a block is lost, or free and used",
            ),
        )
        for holds, message in checks:
            if not holds:
                raise AssertionError(
                    f"{message}: {ref_counts} of {references}, clean {clean}, cached {cached}, "
                    f"named {hashes}, found by name {found}"
                )
        self._free.check_invariants()

    def _forked(self, parent: Sequence, child: Sequence) -> Prefix:
        num_tokens = min(parent.num_computed_tokens, len(child.token_ids) - 1)
        full, rest = divmod(num_tokens, self.block_size)
        child.prefix_hashes[1:] = parent.prefix_hashes[1 : full + 1]
        return Prefix(
            num_tokens=num_tokens,
            blocks=parent.block_table[:full],
            partial=parent.block_table[full] if rest else None,
            is_forked=True,
        )

    def _release(self, table: list[int]) -> None:
        for block in reversed(table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                continue
            if self._hashes[block] is None:
                self._free.add_clean(block)
            else:
                self._free.add_cached(block, self._publishers[block])

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
