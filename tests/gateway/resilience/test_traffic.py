from __future__ import annotations

from backends.base import BackendState
from gateway.policy.choose import BackendHealth
from gateway.policy.model import BackendConfig, BreakerRule
from gateway.resilience.breaker import End
from gateway.resilience.budget import CAPACITY, RESERVE, RetryBudget
from gateway.resilience.traffic import SMOOTHING, Traffic

READY = BackendState.READY
PLAIN = BackendConfig(name="plain", engine="native", model="m", options={})
GUARDED = BackendConfig(
    name="guarded", engine="http", model="m", options={}, breaker=BreakerRule(1, 10.0)
)
CONFIGS = {"plain": PLAIN, "guarded": GUARDED}


def test_counts_what_is_under_way_and_how_fast_it_begins() -> None:
    traffic = Traffic()
    ticket, other = traffic.begin(PLAIN, 0.0), traffic.begin(PLAIN, 1.0)
    assert ticket is not None
    assert other is not None
    traffic.note_first_token(ticket, 2.0)
    traffic.note_first_token(other, 2.0)
    mean_s = 2.0 - SMOOTHING
    assert traffic.health(CONFIGS, {"plain": READY}, 2.0) == {
        "plain": BackendHealth(READY, 2, mean_s)
    }
    traffic.end(ticket, End.WELL, 3.0, 0.0)
    assert traffic.num_in_flight("plain") == 1
    assert traffic.num_in_flight("nobody") == 0


def test_who_is_left_alone_is_down_and_says_why() -> None:
    traffic = Traffic()
    ticket = traffic.begin(GUARDED, 0.0)
    assert ticket is not None
    traffic.end(ticket, End.BADLY, 0.0, 0.0)
    assert traffic.begin(GUARDED, 5.0) is None
    health = traffic.health(CONFIGS, {"guarded": READY}, 5.0)["guarded"]
    assert health.state is BackendState.DOWN
    assert health.why == "its circuit is open, for it failed of late"
    assert traffic.wait_s([GUARDED], 4.0) == 6.0
    assert traffic.wait_s([GUARDED, PLAIN], 4.0) == 0.0
    assert traffic.num_in_flight("guarded") == 0


def test_an_engine_of_ours_is_never_left_alone() -> None:
    traffic = Traffic()
    for _ in range(20):
        ticket = traffic.begin(PLAIN, 0.0)
        assert ticket is not None
        traffic.end(ticket, End.BADLY, 0.0, 0.0)


def test_a_budget_gives_back_a_share_of_what_comes_in() -> None:
    budget = RetryBudget()
    assert [budget.withdraw() for _ in range(5)] == [True] * int(RESERVE) + [False, False]
    for _ in range(4):
        budget.deposit(0.25)
    assert [budget.withdraw() for _ in range(2)] == [True, False]


def test_a_budget_saves_up_no_more_than_its_capacity() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.deposit(0.1)
    taken = sum(budget.withdraw() for _ in range(1000))
    assert taken == int(RESERVE + CAPACITY * 0.1)
