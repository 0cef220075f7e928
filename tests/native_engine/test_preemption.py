from __future__ import annotations

from native_engine.fairness import Account
from native_engine.preemption import choose_displaced, choose_victim, displaceable
from native_engine.sequence import Sequence
from tests.native_engine.sequences import make_sequence

MODEST, GREEDY = Account("modest", 1.0), Account("greedy", 2.0)


def in_order(*sequences: Sequence) -> list[Sequence]:
    return sorted(sequences, key=lambda sequence: sequence.rank)


def test_the_lowest_class_gives_way_then_the_greediest_tenant() -> None:
    first = make_sequence("first", account=GREEDY, priority=1)
    high = make_sequence("high", account=GREEDY, priority=1)
    low = make_sequence("low", account=MODEST)
    lower_but_greedy = make_sequence("greedy", account=GREEDY)
    running = in_order(first, high, low, lower_but_greedy)
    assert choose_victim(running, first) is lower_but_greedy
    running.remove(lower_but_greedy)
    assert choose_victim(running, first) is low


def test_of_a_tenant_who_was_preempted_least_often_gives_way_and_of_these_the_newest() -> None:
    first, spared, old, new = (make_sequence(name, account=MODEST) for name in "abcd")
    spared.num_preemptions = 1
    running = in_order(first, spared, old, new)
    assert choose_victim(running, first) is new
    new.num_preemptions = 1
    assert choose_victim(running, first) is old


def test_the_first_in_order_never_gives_way() -> None:
    first = make_sequence("first", account=GREEDY)
    only_other = make_sequence("other", account=MODEST, num_preemptions=9)
    assert choose_victim([first, only_other], only_other) is only_other
    assert choose_victim([first, only_other], first) is only_other


def test_a_higher_class_gives_way_to_the_first_only() -> None:
    """The first is of a low class and old; somebody has to let it grow."""
    first = make_sequence("first", added_s=-1000.0)
    low, high = make_sequence("low"), make_sequence("high", priority=5)
    running = in_order(first, low, high)
    assert running[0] is first
    assert choose_victim(running, low) is low
    running.remove(low)
    assert choose_victim(running, first) is high


def test_only_a_lower_class_that_has_not_caught_up_is_displaced() -> None:
    """Each class is worth 10 s."""
    newcomer = make_sequence("newcomer", priority=2, added_s=100.0)
    equal = make_sequence("equal", priority=2, added_s=101.0)
    recent = make_sequence("recent", priority=1, added_s=90.1)
    caught_up = make_sequence("caught up", priority=1, added_s=89.9)
    had_a_turn = make_sequence("had a turn", priority=1, added_s=99.0)
    had_a_turn.standing = 2
    running = in_order(equal, recent, caught_up, had_a_turn)
    assert displaceable(running, newcomer) == [recent]


def test_displaces_as_few_as_the_blocks_take() -> None:
    """The small one goes first by the order, and is spared as the large one alone will do."""
    small = make_sequence("small", account=GREEDY, num_blocks=1)
    large = make_sequence("large", account=MODEST, num_blocks=6)
    newcomer = make_sequence("newcomer", priority=1)
    running = in_order(small, large)
    assert choose_displaced(running, newcomer, num_blocks=1, num_places=0) == [small]
    assert choose_displaced(running, newcomer, num_blocks=5, num_places=0) == [large]
    assert choose_displaced(running, newcomer, num_blocks=7, num_places=1) == [small, large]
    assert choose_displaced(running, newcomer, num_blocks=-3, num_places=1) == [small]


def test_displaces_nobody_if_all_together_would_not_do() -> None:
    running = [make_sequence("low", num_blocks=3)]
    newcomer = make_sequence("newcomer", priority=1)
    assert choose_displaced(running, newcomer, num_blocks=4, num_places=0) == []


def test_blocks_shared_with_others_are_not_counted_on() -> None:
    sharing = make_sequence("sharing", num_blocks=5)
    sharing.num_shared_blocks = 4
    newcomer = make_sequence("newcomer", priority=1)
    assert choose_displaced([sharing], newcomer, num_blocks=2, num_places=0) == []
