from __future__ import annotations

from gateway.dialects.retry import error_headers
from gateway.errors import (
    Draining,
    InternalError,
    MethodNotAllowed,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Unauthenticated,
)


def test_a_rate_limit_says_when_to_come_back_and_what_is_left() -> None:
    error = RateLimited(
        "m",
        retry_after_s=0.25,
        dimension="requests",
        limit="l",
        headers=(("x-ratelimit-remaining-requests", "0"),),
    )
    assert error_headers(error) == (
        ("retry-after", "1"),
        ("retry-after-ms", "250"),
        ("x-ratelimit-remaining-requests", "0"),
    )


def test_an_exhausted_quota_tells_clients_not_to_retry() -> None:
    error = QuotaExhausted("m", retry_after_s=7200.0, dimension="tokens", limit="l")
    headers = dict(error_headers(error))
    assert headers["x-should-retry"] == "false"
    assert headers["retry-after"] == "7200"


def test_overload_and_draining_say_when_to_come_back() -> None:
    assert dict(error_headers(Overloaded("m", retry_after_s=2.0)))["retry-after"] == "2"
    assert dict(error_headers(Draining("m")))["retry-after"] == "1"


def test_a_missing_key_is_asked_for() -> None:
    assert error_headers(Unauthenticated("m")) == (("www-authenticate", "Bearer"),)


def test_a_wrong_method_hears_the_right_ones() -> None:
    error = MethodNotAllowed("m", allowed=("GET", "HEAD"))
    assert error_headers(error) == (("allow", "GET, HEAD"),)


def test_other_errors_have_no_headers() -> None:
    assert error_headers(InternalError()) == ()
