from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from native_engine.block_manager import BlockManager, Prefix
from native_engine.prefix_hash import root_hash
from native_engine.sequence import Sequence
from native_engine.types import SamplingParams


def make_sequence(
    request_id: str = "a", token_ids: Iterable[int] = (1,), salt: str = ""
) -> Sequence:
    token_ids = list(token_ids)
    return Sequence(
        request_id=request_id,
        sampling=SamplingParams(max_tokens=1),
        arrival=0,
        added_s=0.0,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        max_num_tokens=1000,
        prefix_hashes=[root_hash("model", salt)],
    )


def test_gives_consecutive_blocks_to_one_sequence() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    sequence = make_sequence()
    manager.allocate(sequence, 3)
    manager.allocate(sequence, 2)
    assert sequence.block_table == [0, 1, 2, 3, 4]


def test_goes_on_behind_the_last_block_although_another_was_freed_earlier() -> None:
    manager = BlockManager(num_blocks=5, block_size=4)
    first, second = make_sequence("first"), make_sequence("second")
    manager.allocate(first, 1)
    manager.allocate(second, 1)
    manager.free(first)
    manager.allocate(second, 4)
    assert second.block_table == [1, 2, 3, 4, 0]
    manager.check_invariants([first, second])


def test_rounds_tokens_up_to_whole_blocks() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    assert [manager.blocks_for(n) for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 1, 2, 2, 3]


def test_frees_once_however_often_it_is_asked() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    sequence = make_sequence()
    manager.allocate(sequence, 3)
    manager.free(sequence)
    manager.free(sequence)
    assert manager.num_free_blocks == 4
    manager.check_invariants([sequence])


def test_leaves_a_freed_table_readable_for_a_step_under_way() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    sequence = make_sequence()
    manager.allocate(sequence, 2)
    table = sequence.block_table
    manager.free(sequence)
    assert table == [0, 1]
    assert sequence.block_table == []


def test_keeps_a_block_until_its_last_holder_lets_go() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first, second = make_sequence("first"), make_sequence("second")
    manager.allocate(first, 1)
    second.block_table = list(first.block_table)
    manager._ref_counts[0] += 1
    manager.free(first)
    assert manager.num_free_blocks == 3
    manager.free(second)
    assert manager.num_free_blocks == 4


def test_takes_nothing_when_too_few_blocks_are_free() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    sequence = make_sequence("greedy")
    with pytest.raises(RuntimeError, match="greedy: 3 blocks asked for, 2 are free"):
        manager.allocate(sequence, 3)
    assert sequence.block_table == []
    assert manager.num_free_blocks == 2


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_refuses_an_empty_pool(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockManager(num_blocks=num_blocks, block_size=block_size)


def test_check_finds_a_block_in_two_tables() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first, second = make_sequence("first"), make_sequence("second")
    manager.allocate(first, 1)
    second.block_table = list(first.block_table)
    with pytest.raises(AssertionError, match="ref counts"):
        manager.check_invariants([first, second])


def test_check_finds_a_lost_block() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    sequence = make_sequence()
    manager.allocate(sequence, 2)
    with pytest.raises(AssertionError, match="ref counts"):
        manager.check_invariants([])


def filled(manager: BlockManager, sequence: Sequence) -> Sequence:
    """The sequence with blocks for all its tokens, computed."""
    sequence.num_computed_tokens = len(sequence.token_ids)
    manager.allocate(sequence, manager.blocks_for(len(sequence.token_ids)))
    manager.publish(sequence, 0, len(sequence.token_ids) // manager.block_size)
    return sequence


def test_finds_published_blocks_in_use_or_free_and_takes_none() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first = filled(manager, make_sequence("first", range(10)))
    second = make_sequence("second", range(10))
    assert manager.match(second).blocks == [0, 1]
    manager.free(first)
    assert manager.match(second).blocks == [0, 1]
    assert second.block_table == []
    assert manager.num_free_blocks == 8
    manager.check_invariants([first, second])


def test_counts_the_holders_of_an_adopted_block() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    first = filled(manager, make_sequence("first", range(10)))
    second = make_sequence("second", range(10))
    found = manager.match(second)
    assert manager.num_used(found.blocks) == 2
    manager.adopt(second, found)
    manager.allocate(second, 1)
    assert second.block_table == [0, 1, 3]
    assert manager.num_free_blocks == 4
    manager.check_invariants([first, second])
    manager.free(first)
    assert manager.num_free_blocks == 5
    assert manager.num_used(found.blocks) == 2
    manager.check_invariants([first, second])


def test_adopts_free_blocks_from_the_middle_of_the_list() -> None:
    manager = BlockManager(num_blocks=8, block_size=4)
    owners = [filled(manager, make_sequence(str(i), range(i, i + 8))) for i in range(3)]
    for owner in owners:
        manager.free(owner)
    again = make_sequence("again", [*range(1, 9), 0])
    found = manager.match(again)
    assert (found.blocks, manager.num_used(found.blocks)) == ([2, 3], 0)
    manager.adopt(again, found)
    assert manager.num_free_blocks == 6
    manager.check_invariants([again])


def test_takes_clean_blocks_first_then_the_tail_of_what_was_freed_first() -> None:
    manager = BlockManager(num_blocks=6, block_size=4)
    first = filled(manager, make_sequence("first", range(10)))  # blocks 0, 1, and 2 half full
    second = filled(manager, make_sequence("second", range(50, 58)))  # blocks 3 and 4
    manager.free(second)
    manager.free(first)
    taker = make_sequence("taker", range(100, 124))
    manager.allocate(taker, 6)
    assert taker.block_table == [2, 5, 4, 3, 1, 0]
    assert manager.num_named_blocks == 0
    manager.check_invariants([taker])


def test_never_goes_on_into_a_cached_block_while_a_clean_one_is_left() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first = filled(manager, make_sequence("first", range(4)))
    second = filled(manager, make_sequence("second", range(50, 54)))
    manager.free(second)
    manager.allocate(first, 1)
    assert first.block_table == [0, 2]
    assert manager.num_named_blocks == 2


def test_equal_blocks_computed_side_by_side_stay_two_and_one_has_the_name() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first, second = make_sequence("first", range(5)), make_sequence("second", range(5))
    filled(manager, first)
    filled(manager, second)
    assert (first.block_table, second.block_table) == ([0, 1], [2, 3])
    assert manager.num_named_blocks == 1
    manager.check_invariants([first, second])


def test_names_nothing_and_finds_nothing_when_switched_off() -> None:
    manager = BlockManager(num_blocks=4, block_size=4, prefix_caching=False)
    first = filled(manager, make_sequence("first", range(10)))
    assert manager.match(make_sequence("second", range(10))).blocks == []
    assert len(first.prefix_hashes) == 1, "nothing was hashed"
    manager.check_invariants([first])


def test_check_finds_a_block_shared_before_it_was_full() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first, second = make_sequence("first", range(10)), make_sequence("second", range(10))
    manager.allocate(first, 3)
    first.num_computed_tokens = 7
    manager.adopt(second, Prefix(num_tokens=8, blocks=first.block_table[:2]))
    with pytest.raises(AssertionError, match=r"'first'.* will write to it: 1"):
        manager.check_invariants([first, second])


def test_check_finds_a_block_of_another_salt() -> None:
    manager = BlockManager(num_blocks=4, block_size=4)
    first = filled(manager, make_sequence("first", range(8), salt="one"))
    second = make_sequence("second", range(8), salt="two")
    assert manager.match(second).blocks == []
    manager.adopt(second, Prefix(num_tokens=8, blocks=first.block_table))
    with pytest.raises(AssertionError, match=r"block 0 of .*'second'.* holds something else"):
        manager.check_invariants([first, second])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_books_balance_under_any_traffic(moves: list[tuple[int, int]]) -> None:
    """A move grows a sequence by some blocks, or frees it when it asks for none."""
    manager = BlockManager(num_blocks=10, block_size=4)
    sequences = [make_sequence(str(i)) for i in range(4)]
    for index, count in moves:
        sequence = sequences[index]
        if count == 0:
            manager.free(sequence)
        elif count <= manager.num_free_blocks:
            manager.allocate(sequence, count)
        manager.check_invariants(sequences)
        held = sum(len(s.block_table) for s in sequences)
        assert held + manager.num_free_blocks == 10
