"""Forking at the level of blocks, over a cache that holds tokens: what beam search is made of."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from native_engine.block_manager import BlockManager
from native_engine.sequence import Sequence
from tests.native_engine.test_block_manager import make_sequence

BLOCK_SIZE = 4


class Cache:
    """Blocks that hold token ids, a manager of them, and the device that copies and writes."""

    def __init__(self, *, num_blocks: int = 64, prefix_caching: bool = True) -> None:
        self.manager = BlockManager(
            num_blocks=num_blocks, block_size=BLOCK_SIZE, prefix_caching=prefix_caching
        )
        self.slots: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]

    def compute(self, sequences: Iterable[Sequence]) -> None:
        """Grow the tables and run a step that computes all known tokens."""
        sequences = list(sequences)
        for sequence in sequences:
            wanted = self.manager.blocks_for(len(sequence.token_ids))
            self.manager.allocate(sequence, wanted - len(sequence.block_table))
        for source, target in self.manager.begin_step():
            self.slots[target] = list(self.slots[source])
        for sequence in sequences:
            for position in range(sequence.num_computed_tokens, len(sequence.token_ids)):
                block = sequence.block_table[position // BLOCK_SIZE]
                self.slots[block][position % BLOCK_SIZE] = sequence.token_ids[position]
        self.manager.end_step()
        for sequence in sequences:
            first = sequence.num_computed_tokens // BLOCK_SIZE
            sequence.num_computed_tokens = len(sequence.token_ids)
            self.manager.publish(sequence, first, len(sequence.token_ids) // BLOCK_SIZE)
        self.manager.check_invariants(sequences)

    def read(self, sequence: Sequence) -> list[int | None]:
        slots = [slot for block in sequence.block_table for slot in self.slots[block]]
        return slots[: sequence.num_computed_tokens]


def child_of(parent: Sequence, *token_ids: int, request_id: str = "child") -> Sequence:
    """Not forked yet: the same tokens and some more."""
    return make_sequence(request_id, [*parent.token_ids, *token_ids])


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("length", [3, 4, 5, 15, 16, 17])
@pytest.mark.parametrize("parents_go_on", [True, False])
def test_beams_read_their_own_history_however_often_a_parent_is_chosen(
    length: int, parents_go_on: bool, prefix_caching: bool
) -> None:
    """E-BEAM: width 4, prompts around a block's end, 32 tokens; parents chosen with repetition.

    A chosen parent goes on as one of its children, or is freed once all of them are forked. What a
    dead beam held alone is clean, so it is what others take and write next, in the same step.
    """
    choose = random.Random(length)
    width, num_steps = 4, 32
    most = 2 * width * -(-(length + num_steps) // BLOCK_SIZE)
    cache = Cache(num_blocks=most, prefix_caching=prefix_caching)
    root = make_sequence("root", range(length))
    cache.compute([root])
    beams = [root]
    for step in range(num_steps):
        chosen = sorted(choose.choices(range(len(beams)), k=width))
        following: list[Sequence] = []
        for index, rank in enumerate(chosen):
            parent, token = beams[rank], 1000 * (step + 1) + index
            if parents_go_on and rank not in chosen[index + 1 :]:  # its other children have forked
                parent.token_ids.append(token)
                following.append(parent)
            else:
                child = child_of(parent, token, request_id=f"{step}-{index}")
                cache.manager.fork(parent, child)
                following.append(child)
        for beam in beams:
            if beam not in following:
                cache.manager.free(beam)
        beams = following
        cache.compute(beams)
        for beam in beams:
            assert cache.read(beam) == beam.token_ids
    assert len({tuple(beam.token_ids) for beam in beams}) == width
    for beam in beams:
        cache.manager.free(beam)
    cache.manager.check_invariants([])
    assert cache.manager.num_free_blocks == most


def test_full_blocks_are_shared_and_the_one_filled_in_part_is_copied() -> None:
    cache = Cache(prefix_caching=False)
    parent = make_sequence("parent", range(10))
    cache.compute([parent])
    child = child_of(parent, 99)
    cache.manager.fork(parent, child)
    assert child.block_table == [0, 1, 3]
    assert cache.manager.begin_step() == ((2, 3),)
    assert cache.manager.begin_step() == (), "handed out once"


def test_a_parent_whose_blocks_are_all_full_costs_no_copy() -> None:
    cache = Cache(prefix_caching=False)
    parent = make_sequence("parent", range(8))
    cache.compute([parent])
    child = child_of(parent, 99)
    cache.manager.fork(parent, child)
    assert child.block_table == [0, 1]
    assert cache.manager.begin_step() == ()


def test_a_child_forks_what_both_have_though_the_parent_has_more() -> None:
    cache = Cache(prefix_caching=False)
    parent = make_sequence("parent", range(20))
    cache.compute([parent])
    child = make_sequence("child", range(7))
    cache.manager.fork(parent, child)
    assert (child.block_table[0], child.num_computed_tokens) == (0, 6)
    cache.compute([child, parent])
    assert cache.read(child) == list(range(7))
    assert cache.read(parent) == list(range(20))


def test_a_source_may_be_freed_and_taken_as_a_target_before_it_is_copied() -> None:
    """4 blocks: the child is a copy of the parent's, then the parent's a copy of another's."""
    cache = Cache(num_blocks=4, prefix_caching=False)
    parent, other = make_sequence("parent", [1, 2]), make_sequence("other", [7, 8, 9])
    cache.compute([parent, other])
    child = child_of(parent, 3)
    cache.manager.fork(parent, child)
    cache.manager.free(parent)
    of_other, of_child = child_of(other, 5), child_of(parent, 4)
    cache.manager.fork(other, of_other)
    cache.manager.fork(child, of_child)
    assert cache.manager._copies == [(0, 2), (1, 0), (2, 3)]
    family = [child, other, of_other, of_child]
    cache.compute(family)
    assert [cache.read(sequence) for sequence in family] == [
        [1, 2, 3],
        [7, 8, 9],
        [7, 8, 9, 5],
        [1, 2, 4],
    ]


def test_a_fork_without_a_free_block_fails_and_says_so() -> None:
    cache = Cache(num_blocks=1)
    parent = make_sequence("parent", [1, 2])
    cache.compute([parent])
    child = child_of(parent, 3)
    with pytest.raises(RuntimeError, match="child: 1 blocks asked for, 0 are free"):
        cache.manager.fork(parent, child)


def test_blocks_freed_while_a_step_runs_are_free_when_it_is_done() -> None:
    cache = Cache(num_blocks=4)
    sequence, other = make_sequence("a", range(6)), make_sequence("b", [1])
    cache.compute([sequence, other])
    cache.manager.begin_step()
    cache.manager.free(sequence)
    cache.manager.free(sequence)
    assert sequence.block_table == []
    assert cache.manager.num_free_blocks == 1
    cache.manager.check_invariants([sequence, other])
    cache.manager.end_step()
    assert cache.manager.num_free_blocks == 3
    cache.manager.check_invariants([sequence, other])
