"""In which order the backends of a route are tried: by a draw, by their load, by a session.

Pure: a draw is a hash of a key that the caller gives, so that the same key draws the same backend,
and one that goes away moves only the keys that it had. Source: D. Thaler and C. Ravishankar, "Using
name-based mappings to increase hit rates" (rendezvous hashing); J. Resch, "New hashing algorithms
for data storage" (its weights, -w / ln u); M. Mitzenmacher, "The power of two choices in randomized
load balancing"; V. Mirrokni et al., "Consistent hashing with bounded loads".
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backends.base import BackendState
from gateway.policy.prices import Price

LOAD_BOUND = 1.25
"""A session leaves its backend when that has more than so many times the pool's mean load. Mirrokni
et al. show that at 1.25 few keys move, and no backend has more than a quarter above its share.
"""


class BackendHealth(NamedTuple):
    """What is known of a backend when a request is routed."""

    state: BackendState
    num_in_flight: int = 0  # requests of ours that it is busy with
    first_token_s: float = 0.0  # what it has needed of late; 0 if that is not known
    why: str = ""  # it is down, where its state alone does not say it


Health = Mapping[str, BackendHealth]


def by_share(shares: Mapping[str, float], key: str) -> tuple[str, ...]:
    """All of them, drawn one after the other in proportion to their shares."""
    return tuple(sorted(shares, key=lambda name: _lot(name, shares[name], key), reverse=True))


def by_balance(
    balance: str,
    names: Sequence[str],
    health: Health,
    prices: Mapping[str, Price | None],
    key: str,
    *,
    is_session: bool,
) -> tuple[str, ...]:
    """A pool's members, the best first. Ties are drawn.

    With `is_session`, `key` has one backend, which it keeps until that is busier than the bound
    allows; only then does the balance decide.
    """
    drawn = by_share(dict.fromkeys(names, 1.0), key)
    loads = {name: health[name].num_in_flight if name in health else 0 for name in names}
    if is_session:
        bound = math.ceil(LOAD_BOUND * (sum(loads.values()) + 1) / len(names))
        kept = tuple(name for name in drawn if loads[name] < bound)
        return (*kept, *sorted((name for name in drawn if name not in kept), key=loads.__getitem__))
    match balance:
        case "p2c":
            first_two = sorted(drawn[:2], key=loads.__getitem__)
            return (*first_two, *drawn[2:])
        case "latency":
            return tuple(sorted(drawn, key=lambda name: _wait_s(health, name)))
        case "cost":
            return tuple(sorted(drawn, key=lambda name: (_cost(prices.get(name)), loads[name])))
        case _:  # least_busy
            return tuple(sorted(drawn, key=loads.__getitem__))


def _lot(name: str, share: float, key: str) -> float:
    """The largest lot wins with a chance in proportion to its share."""
    digest = hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest) + 1) / (2**64 + 1)  # in (0, 1)
    return -share / math.log(uniform)


def _wait_s(health: Health, name: str) -> float:
    """Until a further request may expect its first token. One never asked is asked first."""
    one = health.get(name)
    return one.first_token_s * (one.num_in_flight + 1) if one is not None else math.inf


def _cost(price: Price | None) -> int:
    """One without a price is taken to be ours: what it answers costs nothing."""
    return 0 if price is None else price.input + price.output
