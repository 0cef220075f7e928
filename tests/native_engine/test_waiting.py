from __future__ import annotations

from native_engine.fairness import Account
from native_engine.sequence import Sequence
from native_engine.waiting import PATIENCE_S, WaitingQueue
from tests.native_engine.sequences import make_sequence

ONE, OTHER = Account("one", 0.0), Account("other", 0.0)


def queue_of(*sequences: Sequence, aging_s: float = 10.0) -> WaitingQueue:
    waiting = WaitingQueue(aging_s=aging_s)
    for sequence in sequences:
        waiting.add(sequence, sequence.added_s)
    return waiting


def served(waiting: WaitingQueue, now_s: float = 0.0) -> list[str]:
    names = []
    while waiting:
        head = waiting.head(now_s)
        waiting.serve(head, now_s)
        names.append(head.request_id)
    return names


def test_a_higher_class_goes_first_and_equals_by_arrival() -> None:
    low, *middle = (make_sequence(name, account=ONE) for name in ("low", "first", "second"))
    for sequence in middle:
        sequence.priority = 1
    high = make_sequence("high", account=ONE, priority=7)
    waiting = queue_of(low, *middle, high)
    assert [s.request_id for s in waiting] == ["high", "first", "second", "low"]
    assert served(waiting) == ["high", "first", "second", "low"]


def test_the_tenant_that_had_least_goes_first() -> None:
    rich, poor = Account("rich", 9.0), Account("poor", 1.0)
    waiting = queue_of(
        make_sequence("a", account=rich), make_sequence("b", account=poor), make_sequence("c")
    )
    assert served(waiting) == ["c", "b", "a"]


def test_of_a_tenant_the_preempted_goes_first_then_the_nearest_deadline() -> None:
    waiting = queue_of(
        make_sequence("no deadline", account=ONE),
        make_sequence("late", account=ONE, timeout_s=9.0),
        make_sequence("soon", account=ONE, timeout_s=3.0),
        make_sequence("preempted", account=ONE, num_preemptions=1),
    )
    assert served(waiting) == ["preempted", "soon", "late", "no deadline"]


def test_no_flow_of_deadlines_keeps_one_without_waiting_for_ever() -> None:
    late_s = PATIENCE_S - 1.0
    waiting = queue_of(
        make_sequence("no deadline", account=ONE),
        make_sequence("urgent", account=ONE, added_s=late_s, timeout_s=2.0),
    )
    assert served(waiting) == ["no deadline", "urgent"]


def test_a_class_that_waited_counts_as_one_higher_until_it_had_its_turn() -> None:
    """Of a class one below, one goes first every `aging_s`, and not its whole backlog."""
    waiting = queue_of(*(make_sequence(f"low {i}", account=ONE) for i in range(3)))
    for second in range(30):
        waiting.add(
            make_sequence(f"high {second}", account=OTHER, priority=1, added_s=second), second
        )
        head = waiting.head(second)
        waiting.serve(head, second)
        assert head.request_id.startswith("low" if second in (10, 20) else "high"), second


def test_age_lifts_a_class_up_to_the_highest_that_waits_and_no_further() -> None:
    """After ages both count alike, and the one that had its last turn earlier goes first."""
    low = make_sequence("low", account=ONE)
    high = make_sequence("high", account=OTHER, priority=2, added_s=5.0)
    assert served(queue_of(low, high), now_s=19.0)[0] == "high"
    assert served(queue_of(low, high), now_s=20.0)[0] == "low"
    low.added_s, high.added_s = 5.0, 0.0
    assert served(queue_of(low, high), now_s=1000.0)[0] == "high"


def test_age_decides_nothing_inside_a_class() -> None:
    """A tenant that queued a thousand before the other came gains nothing by it."""
    hog, fresh = Account("hog", 5.0), Account("fresh", 1.0)
    waiting = queue_of(*(make_sequence(f"hog {i}", account=hog) for i in range(1000)))
    waiting.add(make_sequence("fresh", account=fresh, added_s=1e6), 1e6)
    assert waiting.head(1e6).request_id == "fresh"


def test_a_clock_that_steps_back_ages_nobody() -> None:
    """Q-CLOCK-STEP"""
    waiting = queue_of(
        make_sequence("low", account=ONE, added_s=3600.0),
        make_sequence("high", account=OTHER, priority=1, added_s=3600.0),
    )
    assert waiting.head(0.0).request_id == "high"


def test_the_head_stays_the_head_whatever_comes_and_whatever_is_served() -> None:
    account = Account("one", 0.0)
    waiting = queue_of(make_sequence("head", account=account))
    head = waiting.head(0.0)
    waiting.add(make_sequence("urgent", account=account, timeout_s=0.1), 0.0)
    waiting.add(make_sequence("other", account=OTHER), 0.0)
    account.counter = 100.0
    assert waiting.head(0.0) is head
    waiting.remove(head)
    assert waiting.head(0.0).request_id == "other"


def test_the_head_gives_way_to_what_was_preempted_of_its_own_tenant_only() -> None:
    waiting = queue_of(make_sequence("head", account=ONE))
    head = waiting.head(0.0)
    waiting.add(make_sequence("other's", account=OTHER, num_preemptions=1), 0.0)
    assert waiting.head(0.0) is head
    waiting.add(make_sequence("own", account=ONE, num_preemptions=1), 0.0)
    assert waiting.head(0.0).request_id == "own"


def test_counts_what_waits_and_forgets_empty_classes() -> None:
    sequences = [make_sequence(str(i), prompt=i + 1, priority=i % 3) for i in range(9)]
    waiting = queue_of(*sequences)
    assert (len(waiting), waiting.num_prompt_tokens, waiting.highest_priority) == (9, 45, 2)
    for sequence in sequences:
        waiting.remove(sequence)
    assert (len(waiting), waiting.num_prompt_tokens, waiting._classes) == (0, 0, {})


def test_behind_the_head_come_its_own_tenants_and_those_that_would_be_next() -> None:
    """The head's prompt of 10 tokens is as much as a tenant may be ahead."""
    head_account, near, far = Account("h", 5.0), Account("n", 15.0), Account("f", 15.1)
    waiting = queue_of(
        make_sequence("head", account=head_account, prompt=10),
        make_sequence("far", account=far),
        make_sequence("near", account=near),
        make_sequence("own", account=head_account),
        make_sequence("lower class", account=head_account, priority=-1),
    )
    head = waiting.head(0.0)
    assert [s.request_id for s in waiting.behind(head, 4)] == ["own", "near"]
    assert [s.request_id for s in waiting.behind(head, 1)] == ["own"]
