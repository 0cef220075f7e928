from __future__ import annotations

from hypothesis import given, strategies as st

from native_engine.chunking import MIN_CHUNK, split_budget, takes_another

WANTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 200)), min_size=1, max_size=6)


@given(WANTS, st.integers(1, 300))
def test_hands_out_all_there_is_and_no_more_than_wanted(
    wants: list[tuple[int, int]], budget: int
) -> None:
    shares = split_budget(wants, budget)
    assert sum(shares) == min(budget, sum(left for _, left in wants))
    assert all(0 <= share <= left for share, (_, left) in zip(shares, wants, strict=True))
    assert shares[0] >= min(MIN_CHUNK, budget, wants[0][1])


def test_the_shortest_goes_before_all_but_a_chunk_of_the_first() -> None:
    assert split_budget([(0, 1000), (0, 300), (0, 20)], 128) == [MIN_CHUNK, 92, 20]


def test_equals_go_in_order() -> None:
    assert split_budget([(0, 100)] * 3, 128) == [100, 28, 0]


def test_a_higher_class_goes_before_a_shorter_one() -> None:
    assert split_budget([(0, 40), (0, 10), (1, 500)], 128) == [MIN_CHUNK, 0, 112]


def test_takes_another_while_tokens_are_left_or_each_has_its_chunk() -> None:
    assert takes_another([], 1)
    assert takes_another([10], 11)
    assert not takes_another([10], 10)
    assert takes_another([500], 2 * MIN_CHUNK)
    assert not takes_another([500, 500], 3 * MIN_CHUNK - 1)
