from __future__ import annotations

from hypothesis import given, strategies as st

from native_engine.free_blocks import FreeBlocks


def taken(free: FreeBlocks, count: int) -> list[int]:
    """Take so many, each the next to be reused."""
    blocks = []
    for _ in range(count):
        blocks.append(free.head)
        free.remove(free.head)
    return blocks


def pool(num_blocks: int, *, share: float = 1.0) -> FreeBlocks:
    """All of the blocks in use."""
    free = FreeBlocks(num_blocks, max_cached_share=share)
    taken(free, num_blocks)
    return free


def test_clean_blocks_go_first_and_the_one_freed_last_before_the_others() -> None:
    free = FreeBlocks(4, max_cached_share=1.0)
    assert taken(free, 4) == [0, 1, 2, 3]
    free.add_cached(0, "a")
    free.add_clean(3)
    free.add_clean(2)
    free.add_cached(1, "a")
    assert taken(free, 4) == [2, 3, 0, 1]


def test_below_the_quota_the_oldest_goes_first_whoever_owns_it() -> None:
    free = pool(8, share=0.5)
    for block, owner in enumerate("aabbaabb"):
        free.add_cached(block, owner)
    assert taken(free, 8) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_tenant_over_its_quota_loses_its_own_oldest_until_it_is_not() -> None:
    free = pool(8, share=0.5)
    for block, owner in enumerate("bbaaaaaa"):
        free.add_cached(block, owner)
    assert taken(free, 3) == [2, 3, 0]


def test_of_several_over_their_quotas_the_one_that_was_first_pays_first() -> None:
    free = pool(8, share=0.25)
    for block, owner in enumerate("cbbbaaab"):
        free.add_cached(block, owner)
    assert taken(free, 4) == [1, 2, 4, 0]


def test_what_is_found_again_counts_no_longer() -> None:
    free = pool(4, share=0.5)
    for block, owner in enumerate("baaa"):
        free.add_cached(block, owner)
    free.remove(2)
    assert taken(free, 3) == [0, 1, 3]


def test_a_tenant_alone_notices_no_quota() -> None:
    for share in (0.01, 0.5, 1.0):
        free = pool(6, share=share)
        for block in (3, 1, 4, 0, 5, 2):
            free.add_cached(block, "a")
        assert taken(free, 6) == [3, 1, 4, 0, 5, 2]


@given(
    share=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
    moves=st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "a", "b", "c"])), max_size=60),
)
def test_any_traffic_leaves_lists_that_are_those_of_the_rule(
    share: float, moves: list[tuple[int, str]]
) -> None:
    """A move frees a used block, clean or of a tenant, or takes a free one out of the middle."""
    free = FreeBlocks(10, max_cached_share=share)
    clean: list[int] = list(range(10))
    cached: list[tuple[int, str]] = []
    for block, owner in moves:
        if block in clean:
            clean.remove(block)
            free.remove(block)
        elif block in (one for one, _ in cached):
            cached = [(one, of) for one, of in cached if one != block]
            free.remove(block)
        elif owner:
            cached.append((block, owner))
            free.add_cached(block, owner)
        else:
            clean.insert(0, block)
            free.add_clean(block)
        free.check_invariants()
        assert list(free.clean) == clean
        assert list(free.cached) == [one for one, _ in cached]
        assert len(free) == len(clean) + len(cached)
        owners = [of for _, of in cached]
        over = {of for of in owners if owners.count(of) > int(share * 10)}
        if clean:
            assert free.head == clean[0]
        elif over:
            assert free.head in {next(one for one, o in cached if o == of) for of in over}
        elif cached:
            assert free.head == cached[0][0]
