"""Addresses of clients: networks as operators write them, and who it was that called.

Forwarded addresses count only as far as they were added by proxies that the operator named, read
from the right: what stands further left was written by whoever called the first of them. Source:
RFC 7239, section 8.1. Knows no key and no HTTP beyond the form of one header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_WITH_PORT = re.compile(r"\[(.+)\](?::\d+)?|(\d+\.\d+\.\d+\.\d+):\d+", re.ASCII)


def parse_network(text: str) -> Network:
    """`10.0.0.0/8`, `2001:db8::/32`, or one address.

    Raises:
        ValueError: it is none, or has bits set behind its prefix; the message says so.
    """
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{text!r} is no network ({error}); write for example 10.0.0.0/8, 2001:db8::/32 or "
            "192.0.2.7"
        ) from None


def parse_address(text: str) -> Address | None:
    """An address, with or without a port; None if it is none. IPv4 inside IPv6 is taken out."""
    text = text.strip()
    if match := _WITH_PORT.fullmatch(text):
        text = match[1] or match[2]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_loopback(host: str | None) -> bool:
    """Whether a URL's host is an address that leads to this machine alone. No name is one: what a
    name leads to, others decide.
    """
    address = parse_address(host) if host else None
    return address is not None and address.is_loopback


def contains(networks: Iterable[Network], address: Address | None) -> bool:
    """Whether an address lies in any of the networks; one that is not known lies in none."""
    return address is not None and any(address in network for network in networks)


def caller_address(
    peer: str | None, forwarded_for: Sequence[str], trusted_proxies: Sequence[Network]
) -> Address | None:
    """Whose request it is, or None if that cannot be known.

    peer: the socket's other end; forwarded_for: the values of all `x-forwarded-for` headers, in the
    order they came in. Every proxy on the way appended whom it was called by.
    """
    address = parse_address(peer) if peer else None
    hops = [hop for value in forwarded_for for hop in value.split(",")]
    while hops and contains(trusted_proxies, address):
        address = parse_address(hops.pop())
    return address
