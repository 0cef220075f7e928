"""Which addresses a worker may register under: a controller sends requests wherever it is told.

Whoever reaches the controller could otherwise make it call, and show prompts to, any host that this
machine reaches: a service inside, or a cloud's metadata service. So by default a worker is on a
loopback or private address, written as an IP address or `localhost`; any other host must be listed.
Names are not looked up: what a name stands for may change between a check and its use.

Source: RFC 1918, RFC 4193; OWASP, Server-Side Request Forgery.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

_PRIVATE = tuple(
    ipaddress.ip_network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)


class BadWorkerAddress(ValueError):
    """The message says what is wrong with it, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRule:
    """`listed_hosts` may register besides: names or IP addresses, in lower case."""

    listed_hosts: frozenset[str] = frozenset()

    def check(self, address: str) -> None:
        """Raises: BadWorkerAddress: it is no plain http(s) address, or its host is not allowed."""
        host = _split(address).hostname or ""
        if host not in self.listed_hosts and not _is_near(host):
            raise BadWorkerAddress(
                f"worker address {address!r}: {host!r} is neither on a loopback nor on a private "
                "network; add it to the backend's option worker_hosts if it is yours"
            )


def _split(address: str) -> SplitResult:
    wrong = BadWorkerAddress(
        f"worker address {address!r} must look like http://10.0.0.7:21002 (http or https, "
        "neither user nor query)"
    )
    try:
        parts = urlsplit(address)
        has_port = parts.port is None or parts.port > 0
    except ValueError:  # a port or an IPv6 address that is none
        raise wrong from None
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not (is_plain and has_port):
        raise wrong
    if not address.isascii() or not address.isprintable() or any(c in address for c in " \\@"):
        raise wrong  # readers of URLs disagree on where the host ends
    return parts


def _is_near(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback or any(ip in network for network in _PRIVATE)
