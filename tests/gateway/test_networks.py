"""Who called: the socket's other end, or what proxies that are trusted say of it."""

from __future__ import annotations

import pytest

from gateway.networks import caller_address, contains, parse_address, parse_network

TRUSTED = (parse_network("127.0.0.1"), parse_network("10.0.0.0/8"), parse_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "caller"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.7"], "192.0.2.1"),  # a stranger says so
        ("127.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["6.6.6.6, 203.0.113.7"], "203.0.113.7"),  # what the client itself sent
        ("127.0.0.1", ["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["6.6.6.6, 203.0.113.7, 10.1.1.1"], "203.0.113.7"),
        ("127.0.0.1", ["10.1.1.1"], "10.1.1.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("fd00::1", ["2001:db8::7"], "2001:db8::7"),
        ("127.0.0.1", ["[2001:db8::7]:4711"], "2001:db8::7"),
        ("127.0.0.1", ["203.0.113.7:4711"], "203.0.113.7"),
        ("::ffff:127.0.0.1", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["203.0.113.7, garbage"], None),
        ("127.0.0.1", ["203.0.113.7, "], None),
        ("127.0.0.1", [""], None),
        (None, ["203.0.113.7"], None),  # a Unix socket
    ],
)
def test_forwarded_addresses_count_only_from_proxies_that_are_trusted(
    peer: str | None, forwarded_for: list[str], caller: str | None
) -> None:
    """Case Q-XFF-SPOOF."""
    address = caller_address(peer, forwarded_for, TRUSTED)
    assert (None if address is None else str(address)) == caller


def test_without_a_trusted_proxy_the_header_says_nothing() -> None:
    """Case Q-XFF-SPOOF."""
    assert str(caller_address("127.0.0.1", ["203.0.113.7"], ())) == "127.0.0.1"


@pytest.mark.parametrize(
    ("network", "inside", "outside"),
    [
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
        ("2001:db8::/32", "2001:db8::1", "2001:db9::1"),
        ("0.0.0.0/0", "1.2.3.4", "2001:db8::1"),
        ("1.2.3.0/24", "::ffff:1.2.3.4", "::1.2.3.4"),
    ],
)
def test_a_network_holds_what_begins_like_it(network: str, inside: str, outside: str) -> None:
    networks = [parse_network(network)]
    assert contains(networks, parse_address(inside))
    assert not contains(networks, parse_address(outside))
    assert not contains(networks, None)


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "host", "10.0.0.0-10.0.0.9"])
def test_what_is_no_network_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no network .*write for example"):
        parse_network(text)
