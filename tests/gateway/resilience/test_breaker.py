from __future__ import annotations

from hypothesis import given, strategies as st

from gateway.policy.model import BreakerRule
from gateway.resilience.breaker import JITTER, MAX_DOUBLINGS, Breaker, End, Passage

RULE = BreakerRule(failures=3, cooldown_s=10.0)


def failed(times: int, *, now_s: float = 0.0, luck: float = 0.0) -> Breaker:
    breaker = Breaker(RULE)
    for _ in range(times):
        assert breaker.begin(now_s) is Passage.PLAIN
        breaker.end(Passage.PLAIN, End.BADLY, now_s, luck)
    return breaker


def test_opens_after_so_many_failures_in_a_row() -> None:
    assert not failed(2).is_open(0.0)
    breaker = failed(3)
    assert breaker.is_open(9.9)
    assert breaker.begin(9.9) is None
    assert breaker.wait_s(4.0) == 6.0


def test_a_success_in_between_begins_the_count_anew() -> None:
    breaker = failed(2)
    breaker.end(Passage.PLAIN, End.WELL, 0.0, 0.0)
    breaker.end(Passage.PLAIN, End.BADLY, 0.0, 0.0)
    breaker.end(Passage.PLAIN, End.BADLY, 0.0, 0.0)
    assert not breaker.is_open(0.0)


def test_what_says_nothing_of_the_backend_counts_as_nothing() -> None:
    breaker = failed(2)
    for _ in range(5):
        breaker.end(Passage.PLAIN, End.SILENTLY, 0.0, 0.0)
    assert not breaker.is_open(0.0)
    breaker.end(Passage.PLAIN, End.BADLY, 0.0, 0.0)
    assert breaker.is_open(0.0)


def test_half_open_one_probe_passes_and_the_others_wait_for_it() -> None:
    """Case R-HALF-OPEN."""
    breaker = failed(3)
    assert [breaker.begin(10.0) for _ in range(3)] == [Passage.PROBE, None, None]
    breaker.end(Passage.PROBE, End.WELL, 11.0, 0.0)
    assert breaker.begin(11.0) is Passage.PLAIN


def test_a_probe_whose_client_leaves_makes_room_for_another() -> None:
    """Case R-HALF-OPEN: it never sticks half open."""
    breaker = failed(3)
    assert breaker.begin(10.0) is Passage.PROBE
    breaker.end(Passage.PROBE, End.SILENTLY, 10.5, 0.0)
    assert breaker.begin(10.5) is Passage.PROBE


def test_a_probe_that_fails_doubles_the_cooldown_up_to_a_bound() -> None:
    breaker, now_s, waits = failed(3), 0.0, list[float]()
    for _ in range(MAX_DOUBLINGS + 2):
        waits.append(breaker.wait_s(now_s))
        now_s += breaker.wait_s(now_s)
        assert breaker.begin(now_s) is Passage.PROBE
        breaker.end(Passage.PROBE, End.BADLY, now_s, 0.0)
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 160.0]


def test_attempts_that_began_before_it_opened_have_no_say() -> None:
    breaker = failed(3)
    breaker.end(Passage.PLAIN, End.WELL, 1.0, 0.0)
    assert breaker.is_open(1.0)
    breaker.end(Passage.PLAIN, End.BADLY, 5.0, 0.0)
    assert breaker.wait_s(5.0) == 5.0


def test_luck_spreads_the_probes_of_several_gateways() -> None:
    assert failed(3, luck=0.5).wait_s(0.0) == 10.0 * (1 + JITTER / 2)


@given(st.lists(st.tuples(st.sampled_from(End), st.floats(0, 30), st.booleans()), max_size=60))
def test_in_any_course_of_things_at_most_one_probe_is_under_way(
    steps: list[tuple[End, float, bool]],
) -> None:
    breaker, now_s = Breaker(RULE), 0.0
    under_way: list[Passage] = []
    for end, pause_s, ends_now in steps:
        now_s += pause_s
        passage = breaker.begin(now_s)
        if passage is not None:
            under_way.append(passage)
        assert under_way.count(Passage.PROBE) <= 1
        if under_way and ends_now:
            breaker.end(under_way.pop(0), end, now_s, 0.5)
    for passage in under_way:
        breaker.end(passage, End.SILENTLY, now_s, 0.5)
    assert breaker.begin(now_s + breaker.wait_s(now_s)) is not None  # it never sticks
