"""Who is in the next batch: text-generation-inference's rule, in classes that are ours.

In one class it is TGI's: first come, first served. A request gets the blocks of its whole
reservation or none; the first that does not fit ends the batch, and stays the first. Its tokens
have to fit a budget of tokens to prefill, its reservation one of tokens to hold; when prefills come
in chunks, the last takes what is left of the first. A batch of less than `min_size` is none.

Between classes:

* The class that stands highest goes first. A class stands one higher for each `max_waiting_tokens`
  iterations since it last had a turn, or since it began to wait, up to the highest that waits;
  among equals the one that waits the longest goes first. An iteration is a call of `next_batch`. It
  is the class that ages: a backlog of a low one only keeps moving.
* Where the first of a class does not fit, a class that stands lower goes on with what is left, and
  `max_bypass` go before that first one in all.

Knows blocks, not what is in them; no clock and no torch. Source: the queue of TGI's router,
backends/v3; what it waits for between two calls is the batcher's affair.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from backends.priority_batcher.config import PriorityBatcherConfig
from native_engine.block_manager import BlockManager
from native_engine.sequence import Sequence


@dataclass(slots=True, kw_only=True, eq=False)
class Entry(Sequence):
    """A request, in line or in the batch."""

    limit: int = 0  # the admission ends when so many tokens are known; blocks for it are reserved


class Admission(NamedTuple):
    """What an entry computes in a step: so many of its known tokens."""

    entry: Entry
    num_tokens: int


class Queue:
    """All entries in line. They hold no blocks; `next_batch` gives them theirs."""

    def __init__(self, block_manager: BlockManager, config: PriorityBatcherConfig) -> None:
        """`config` is a resolved one."""
        self.iteration = 0
        self._block_manager = block_manager
        self._config = config
        self._lines: dict[int, _Line] = {}  # those that are not empty, by priority

    def __len__(self) -> int:
        return sum(len(line.entries) for line in self._lines.values())

    def __iter__(self) -> Iterator[Entry]:
        for line in self._lines.values():
            yield from line.entries

    def append(self, entry: Entry) -> None:
        """Put an entry at the back of its class, and settle what is to be reserved for it."""
        entry.limit = self._config.reserved_until(len(entry.token_ids), entry.max_num_tokens)
        line = self._lines.get(entry.priority)
        if line is None:
            line = self._lines[entry.priority] = _Line(entry.priority, self.iteration)
        line.entries.append(entry)

    def remove(self, entry: Entry) -> None:
        """Take out an entry wherever it stands."""
        self._lines[entry.priority].entries.remove(entry)
        self._drop_if_empty(entry.priority)

    def next_batch(
        self, *, min_size: int, max_size: int, prefill_budget: int, token_budget: int
    ) -> list[Admission]:
        """Take out those that are to be prefilled next, with the blocks of their reservations.

        `prefill_budget` is tokens to compute, and counts in whole blocks; `token_budget` is tokens
        to reserve. Fewer than `min_size`: nobody, and nothing has changed.
        """
        self.iteration += 1
        if len(self) < min_size or max_size < 1:
            return []
        block_size = self._block_manager.block_size
        batch = _Batch(
            prefill_tokens=-(-prefill_budget // block_size) * block_size,
            tokens=token_budget,
        )
        while len(batch.admissions) < max_size and batch.prefill_tokens > 0:
            line = self._choose(batch)
            if line is None or not self._may_pass(batch):
                break
            entry = line.entries[batch.taken[line]]
            if not self._admit(entry, batch):
                batch.blocked[entry] = len(batch.admissions)
                continue
            batch.taken[line] += 1
        if len(batch.admissions) < min_size:
            for entry, _ in batch.admissions:
                self._block_manager.free(entry)
                entry.num_computed_tokens = 0
            return []
        self._commit(batch)
        return batch.admissions

    def check_invariants(self) -> None:
        """Hold the lines against the entries. For tests.

        Raises:
            AssertionError: they contradict.
        """
        for priority, line in self._lines.items():
            if not line.entries or line.since > self.iteration:
                raise AssertionError(f"class {priority}: {line.entries} since {line.since}")
            for entry in line.entries:
                holds = entry.block_table or entry.num_computed_tokens
                if entry.priority != priority or holds or entry.limit <= len(entry.token_ids):
                    raise AssertionError(f"{entry} in line of class {priority}")

    def _choose(self, batch: _Batch) -> _Line | None:
        """Whose turn it is, of those that have anyone left and are not blocked."""
        waiting = [line for line in self._lines.values() if batch.taken[line] < len(line.entries)]
        highest = max((line.priority for line in waiting), default=0)

        def order(line: _Line) -> tuple[int, int, int]:
            since = self.iteration if batch.taken[line] else line.since
            age = (self.iteration - since) // self._config.max_waiting_tokens
            return min(line.priority + age, highest), -since, line.priority

        closed = {entry.priority for entry in batch.blocked}
        return max(
            (line for line in waiting if line.priority not in closed), key=order, default=None
        )

    def _may_pass(self, batch: _Batch) -> bool:
        """Whether one more may go before all that are blocked."""
        most = self._config.max_bypass
        return all(batch.passings(entry) < most for entry in batch.blocked)

    def _admit(self, entry: Entry, batch: _Batch) -> bool:
        """Whether the entry fits what the batch has left. If so, it is in it, and holds what it
        shares with others; its own blocks are promised.
        """
        blocks = self._block_manager
        prefix = blocks.match(entry)
        num_tokens = len(entry.token_ids) - prefix.num_tokens
        if num_tokens > batch.prefill_tokens and not self._config.chunking:
            return False
        num_blocks = blocks.blocks_for(entry.limit - 1)  # the last token's KV is never needed
        num_free = blocks.num_free_blocks - batch.promised_blocks
        if entry.limit > batch.tokens or num_blocks - blocks.num_used(prefix.blocks) > num_free:
            return False
        blocks.adopt(entry, prefix)
        num_tokens = min(num_tokens, batch.prefill_tokens)
        batch.admissions.append(Admission(entry, num_tokens))
        batch.prefill_tokens -= num_tokens
        batch.tokens -= entry.limit
        batch.promised_blocks += num_blocks - len(prefix.blocks)
        return True

    def _commit(self, batch: _Batch) -> None:
        for entry in batch.blocked:
            entry.num_bypasses = batch.passings(entry)
        for line, count in batch.taken.items():
            for _ in range(count):
                line.entries.popleft()
            line.since = self.iteration
            self._drop_if_empty(line.priority)
        for entry, _ in batch.admissions:
            num_blocks = self._block_manager.blocks_for(entry.limit - 1)
            self._block_manager.allocate(entry, num_blocks - len(entry.block_table))
            entry.num_bypasses = 0

    def _drop_if_empty(self, priority: int) -> None:
        if not self._lines[priority].entries:
            del self._lines[priority]


class _Line:
    """A class that waits."""

    __slots__ = ("entries", "priority", "since")

    def __init__(self, priority: int, since: int) -> None:
        self.priority = priority
        self.since = since  # the iteration of its last turn, or after which it began to wait
        self.entries: deque[Entry] = deque()


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch that is being put together, and what it has left. Entries stay in line till it is."""

    prefill_tokens: int
    tokens: int
    promised_blocks: int = 0
    admissions: list[Admission] = field(default_factory=list[Admission])
    taken: Counter[_Line] = field(default_factory=Counter[_Line])  # from the front of each class
    blocked: dict[Entry, int] = field(default_factory=dict[Entry, int])  # and how many were in then

    def passings(self, entry: Entry) -> int:
        """How many have gone before an entry that is blocked, ever."""
        return entry.num_bypasses + len(self.admissions) - self.blocked[entry]
