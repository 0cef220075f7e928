"""What is counted per address, by a clock of the test's own."""

from __future__ import annotations

import ipaddress
import logging

import pytest
from limits import RateLimitItemPerMinute
from limits.strategies import FixedWindowRateLimiter

from gateway import guard as module
from gateway.errors import Overloaded, RateLimited, Unauthenticated
from gateway.guard import Counters, Door, Guard, source_of
from gateway.networks import Address, parse_address
from tests.clock import FakeClock

HERE = ipaddress.ip_address("192.0.2.7")
THERE = ipaddress.ip_address("192.0.2.8")
GOOD = (b"Bearer good",)
BAD = (b"Bearer bad",)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def guard(clock: FakeClock) -> Guard:
    return guard_of(clock)


def guard_of(
    clock: FakeClock, *, failures: int = 3, admin_failures: int = 2, admin: int = 4
) -> Guard:
    return Guard(
        auth_failures_per_min=failures,
        admin_auth_failures_per_min=admin_failures,
        admin_requests_per_min=admin,
        clock=clock,
    )


def fail(
    guard: Guard,
    door: Door = Door.PUBLIC,
    address: Address | None = HERE,
    credentials: tuple[bytes, ...] = BAD,
) -> None:
    with pytest.raises(Unauthenticated), guard.attempt(door, address, credentials):
        raise Unauthenticated("no")


def succeed(
    guard: Guard,
    door: Door = Door.PUBLIC,
    address: Address | None = HERE,
    credentials: tuple[bytes, ...] = GOOD,
) -> None:
    with guard.attempt(door, address, credentials):
        pass


def is_refused(
    guard: Guard,
    door: Door = Door.PUBLIC,
    address: Address | None = HERE,
    credentials: tuple[bytes, ...] = BAD,
) -> RateLimited:
    with pytest.raises(RateLimited) as caught, guard.attempt(door, address, credentials):
        pytest.fail("the key was looked up")
    return caught.value


def test_an_address_that_failed_too_often_is_refused_before_any_look_up(guard: Guard) -> None:
    for _ in range(3):
        fail(guard)
    assert is_refused(guard, credentials=GOOD).code == "rate_limit_exceeded"
    assert is_refused(guard, credentials=()).message == (
        "The limit of 3 failed authentications per minute is reached for your address; "
        "try again in 60 s."
    )
    succeed(guard, address=THERE)


def test_the_wait_that_is_told_is_true(guard: Guard, clock: FakeClock) -> None:
    fail(guard)
    clock.advance(20.0)
    fail(guard)
    fail(guard)
    clock.advance(15.5)
    assert is_refused(guard).retry_after_s == pytest.approx(24.5)
    clock.advance(24.5)
    succeed(guard)


def test_who_was_good_before_goes_on_beside_a_scanner(guard: Guard, clock: FakeClock) -> None:
    """Until it is good no more: then it is a stranger's."""
    succeed(guard)
    for _ in range(3):
        fail(guard)
    succeed(guard)
    clock.advance(10.0)
    succeed(guard)
    fail(guard, credentials=GOOD)
    is_refused(guard, credentials=GOOD)


def test_the_doors_are_counted_apart(guard: Guard) -> None:
    """A tenant's good key is a stranger at /admin."""
    succeed(guard)
    for _ in range(2):
        fail(guard, Door.ADMIN)
    is_refused(guard, Door.ADMIN, credentials=GOOD)
    fail(guard)


def test_a_database_that_is_down_locks_nobody_out(guard: Guard) -> None:
    for _ in range(9):
        with pytest.raises(Overloaded), guard.attempt(Door.PUBLIC, HERE, BAD):
            raise Overloaded("later")
    succeed(guard)


def prove(guard: Guard, *, good: bool) -> None:
    with guard.proof(Door.PUBLIC, HERE):
        if not good:
            raise Unauthenticated("no")


def test_what_proves_itself_is_looked_at_over_the_limit_too(guard: Guard) -> None:
    """Each token is new: a good one must not wait with a scanner of the same address."""
    for _ in range(3):
        prove(guard, good=True)
        with pytest.raises(Unauthenticated):
            prove(guard, good=False)
    prove(guard, good=True)
    with pytest.raises(RateLimited, match=r"3 failed authentications.*in 60 s"):
        prove(guard, good=False)


def test_bad_proofs_and_bad_keys_are_counted_together(guard: Guard) -> None:
    fail(guard)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            prove(guard, good=False)
    is_refused(guard)
    prove(guard, good=True)


def test_proofs_are_not_remembered(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand fresh tokens push no key out."""
    monkeypatch.setattr(module, "MAX_KNOWN", 1)
    succeed(guard)
    for _ in range(3):
        prove(guard, good=True)
        fail(guard)
    succeed(guard)


def test_admin_requests_are_counted_good_or_bad(guard: Guard, clock: FakeClock) -> None:
    for _ in range(4):
        guard.count_admin_request(HERE)
    clock.advance(59.0)
    with pytest.raises(RateLimited, match=r"4 requests to /admin per minute.*in 1 s"):
        guard.count_admin_request(HERE)
    guard.count_admin_request(THERE)
    clock.advance(1.0)
    guard.count_admin_request(HERE)


def test_no_limit_counts_nothing(clock: FakeClock) -> None:
    guard = guard_of(clock, failures=0, admin_failures=0, admin=0)
    for door in Door:
        for _ in range(100):
            fail(guard, door)
            guard.count_admin_request(HERE)
        succeed(guard, door)
    for _ in range(100):
        with pytest.raises(Unauthenticated):
            prove(guard, good=False)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("nonsense", "unknown"),
    ],
)
def test_one_customer_of_a_provider_is_counted_as_one(text: str, source: str) -> None:
    assert source_of(parse_address(text)) == source


def test_memory_is_bounded_by_forgetting_who_began_first(clock: FakeClock) -> None:
    counters = Counters(clock=clock, max_counters=2)
    for i, key in enumerate("aabc"):
        clock.advance(i)
        counters.incr(key, 60)
    assert [counters.get(key) for key in "abc"] == [0, 1, 1]
    clock.advance(60.0)
    counters.incr("d", 60)
    assert counters.reset() == 1  # those that ended are gone


def test_good_credentials_are_remembered_up_to_a_number(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 2)
    keys = [(f"Bearer {i}".encode(),) for i in range(3)]
    for key in (keys[0], keys[1], keys[0], keys[2]):
        succeed(guard, credentials=key)
    for _ in range(3):
        fail(guard)
    succeed(guard, credentials=keys[0])
    is_refused(guard, credentials=keys[1])


def test_an_address_is_logged_when_it_reaches_the_limit(
    guard: Guard, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and with nothing of what it showed."""
    for _ in range(3):
        fail(guard)
    for _ in range(5):
        is_refused(guard)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == [
        "3 failed authentications from 192.0.2.7 within a minute"
    ]


def test_the_counters_do_what_strategies_of_limits_ask(clock: FakeClock) -> None:
    counters = Counters(clock=clock)
    strategy = FixedWindowRateLimiter(counters)
    item = RateLimitItemPerMinute(2)
    assert [strategy.hit(item, "a") for _ in range(3)] == [True, True, False]
    assert strategy.get_window_stats(item, "a") == (1060.0, 0)
    strategy.clear(item, "a")
    assert strategy.get_window_stats(item, "a") == (1000.0, 2)
    assert counters.check()
