from __future__ import annotations

from collections import Counter

from hypothesis import given, strategies as st

from backends.base import BackendState
from gateway.policy.choose import LOAD_BOUND, BackendHealth, by_balance, by_share
from gateway.policy.prices import Price

NAMES = ("a", "b", "c", "d")


def busy(**loads: int) -> dict[str, BackendHealth]:
    return {name: BackendHealth(BackendState.READY, load) for name, load in loads.items()}


def chosen(balance: str, health: dict[str, BackendHealth], *, key: str = "k") -> tuple[str, ...]:
    return by_balance(balance, [*health], health, {}, key, is_session=False)


def test_draws_come_in_proportion_to_the_shares() -> None:
    firsts = Counter(by_share({"a": 90, "b": 9, "c": 1}, str(seed))[0] for seed in range(20_000))
    assert abs(firsts["a"] / 20_000 - 0.90) < 0.01
    assert abs(firsts["b"] / 20_000 - 0.09) < 0.01
    assert abs(firsts["c"] / 20_000 - 0.01) < 0.004


@given(st.text(), st.sampled_from(NAMES))
def test_one_that_goes_away_moves_only_its_own_keys(key: str, gone: str) -> None:
    shares = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    before = by_share(shares, key)
    after = by_share({name: share for name, share in shares.items() if name != gone}, key)
    assert after == tuple(name for name in before if name != gone)


@given(st.text())
def test_a_key_draws_the_same_whatever_the_order(key: str) -> None:
    shares = {"a": 1.0, "b": 2.0, "c": 3.0}
    assert by_share(shares, key) == by_share(dict(reversed(shares.items())), key)


def test_the_least_busy_comes_first_and_ties_are_drawn() -> None:
    assert chosen("least_busy", busy(a=3, b=1, c=2)) == ("b", "c", "a")
    tied = {chosen("least_busy", busy(a=1, b=1), key=str(seed))[0] for seed in range(50)}
    assert tied == {"a", "b"}


def test_of_two_drawn_the_less_busy_is_taken() -> None:
    health = busy(a=9, b=1, c=2, d=3)
    for seed in range(50):
        first, second, *rest = chosen("p2c", health, key=str(seed))
        assert health[first].num_in_flight <= health[second].num_in_flight
        assert {first, second} == {*by_share(dict.fromkeys(NAMES, 1.0), str(seed))[:2]}
        assert len(rest) == 2


def test_latency_counts_who_waits_already_and_asks_a_stranger_first() -> None:
    fast = BackendHealth(BackendState.READY, 3, 0.1)
    slow = BackendHealth(BackendState.READY, 0, 0.3)
    stranger = BackendHealth(BackendState.READY, 0, 0.0)
    assert chosen("latency", {"fast": fast, "slow": slow}) == ("slow", "fast")
    assert chosen("latency", {"fast": fast, "new": stranger})[0] == "new"


def test_the_cheapest_comes_first_and_what_is_ours_costs_nothing() -> None:
    prices = {
        "dear": Price(input=3, cached=1, output=9),
        "cheap": Price(input=1, cached=1, output=1),
    }
    health = busy(dear=0, cheap=5, ours=7)
    order = by_balance("cost", [*health], health, prices, "k", is_session=False)
    assert order == ("ours", "cheap", "dear")


def test_a_session_keeps_its_backend_until_that_is_too_busy() -> None:
    key = "tenant\0session"
    first, second, *_ = by_share(dict.fromkeys(NAMES, 1.0), key)
    calm = busy(**dict.fromkeys(NAMES, 4))
    assert by_balance("least_busy", NAMES, calm, {}, key, is_session=True)[0] == first
    crowded = {**calm, first: BackendHealth(BackendState.READY, 12)}
    assert by_balance("least_busy", NAMES, crowded, {}, key, is_session=True)[0] == second
    assert by_balance("least_busy", NAMES, crowded, {}, key, is_session=True)[-1] == first


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50), min_size=1),
    st.sampled_from(["least_busy", "p2c", "latency", "cost"]),
    st.booleans(),
    st.text(),
)
def test_every_member_comes_once_and_no_session_overloads_one(
    loads: dict[str, int], balance: str, is_session: bool, key: str
) -> None:
    health = busy(**loads)
    order = by_balance(balance, [*health], health, {}, key, is_session=is_session)
    assert sorted(order) == sorted(health)
    if is_session:
        mean = (sum(loads.values()) + 1) / len(loads)
        assert loads[order[0]] <= LOAD_BOUND * mean + 1
