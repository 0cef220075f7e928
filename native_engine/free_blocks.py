"""Blocks that no sequence holds, in the order of their reuse.

Clean ones go first: nobody can find anything in them. Then cached ones, the one freed first first.
But a tenant who has more than its share of the pool lying free and cached loses its own, until it
has no more than that: so a tenant who floods the engine with prompts overwrites its own, not what
others will ask again.

Adding, choosing and removing take O(1) each, however many blocks and tenants there are. Knows
neither tables nor contents.
"""

from __future__ import annotations

from collections.abc import Iterator


class Links:
    """Which block comes after and which before each: for any number of rings that share none."""

    __slots__ = ("next", "previous")

    def __init__(self, num_blocks: int) -> None:
        self.next = list(range(num_blocks))
        self.previous = list(range(num_blocks))


class Ring:
    """Blocks in order, each linked to its neighbours, the last to the first."""

    __slots__ = ("_length", "_next", "_previous", "head")

    def __init__(self, links: Links) -> None:
        self._next, self._previous = links.next, links.previous
        self._length = 0
        self.head = -1  # the first block, if there is one

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        block = self.head
        for _ in range(self._length):
            yield block
            block = self._next[block]

    def append(self, block: int) -> None:
        """Add a block that is in no ring over these links, as the last."""
        if self._length:
            after = self.head
            before = self._previous[after]
            self._next[before] = self._previous[after] = block
            self._previous[block], self._next[block] = before, after
        else:
            self.head = self._next[block] = self._previous[block] = block
        self._length += 1

    def prepend(self, block: int) -> None:
        """Add a block that is in no ring over these links, as the first."""
        self.append(block)
        self.head = block

    def remove(self, block: int) -> None:
        """Take out a block that is in this ring, wherever it stands."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._length -= 1
        if block == self.head:
            self.head = after


class FreeBlocks:
    """All blocks at first, clean. A cached one is in two rings: of all cached, and of its owner."""

    def __init__(self, num_blocks: int, *, max_cached_share: float) -> None:
        """max_cached_share: of the pool, for one tenant while others' are to be overwritten."""
        links = Links(num_blocks)
        self.clean = Ring(links)
        self.cached = Ring(links)
        for block in range(num_blocks):
            self.clean.append(block)
        self._owned_links = Links(num_blocks)
        self._owned: dict[str, Ring] = {}  # by tenant, none of them empty
        self._owners: list[str | None] = [None] * num_blocks  # None: clean, or not free
        self._most = int(max_cached_share * num_blocks)
        self._over: dict[str, None] = {}  # the tenants who own more, the longest so first

    def __len__(self) -> int:
        return len(self.clean) + len(self.cached)

    @property
    def head(self) -> int:
        """The next to be reused. There must be one."""
        if len(self.clean):
            return self.clean.head
        for tenant in self._over:
            return self._owned[tenant].head
        return self.cached.head

    def add_clean(self, block: int) -> None:
        """As the next to be reused, for it was in use the moment before."""
        self.clean.prepend(block)

    def add_cached(self, block: int, owner: str) -> None:
        """As the last to be reused. `owner` is the tenant it counts for."""
        self.cached.append(block)
        self._owners[block] = owner
        owned = self._owned.get(owner)
        if owned is None:
            owned = self._owned[owner] = Ring(self._owned_links)
        owned.append(block)
        if len(owned) > self._most:
            self._over[owner] = None

    def remove(self, block: int) -> None:
        """Take out a block that is free, of whichever kind."""
        owner = self._owners[block]
        if owner is None:
            self.clean.remove(block)
            return
        self.cached.remove(block)
        self._owners[block] = None
        owned = self._owned[owner]
        owned.remove(block)
        if len(owned) <= self._most:
            self._over.pop(owner, None)
        if not len(owned):
            del self._owned[owner]

    def check_invariants(self) -> None:
        """Hold the owners' rings against the ring of all cached. O(num_blocks), for tests.

        Raises:
            AssertionError: they contradict.
        """
        owned = {tenant: list(ring) for tenant, ring in self._owned.items()}
        expected: dict[str, list[int]] = {}
        for block in self.cached:
            owner = self._owners[block]
            if owner is None:
                raise AssertionError(f"block {block} is cached and nobody's")
            expected.setdefault(owner, []).append(block)
        if owned != expected:
            raise AssertionError(f"tenants own {owned}, but cached are {expected}")
        over = {tenant for tenant, blocks in owned.items() if len(blocks) > self._most}
        if over != self._over.keys():
            raise AssertionError(f"over the quota are {over}, not {list(self._over)}")
