"""How the prompts that are being computed share the tokens of a step. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

MIN_CHUNK = 32


def split_budget(wants: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """Tokens for each prefill, given `(priority, tokens left)` of each, the first in order first.

    The first gets at least `MIN_CHUNK`, or what it wants or there is, so that it always gets on.
    Then it goes by class, and in a class the shortest first: a short prompt never waits for a long
    one.
    """
    shares = [0] * len(wants)
    shares[0] = min(MIN_CHUNK, wants[0][1], budget)
    budget -= shares[0]
    for index in sorted(range(len(wants)), key=lambda i: (-wants[i][0], wants[i][1])):
        share = min(wants[index][1] - shares[index], budget)
        shares[index] += share
        budget -= share
    return shares


def takes_another(wants: Sequence[int], budget: int) -> bool:
    """Whether one more prefill can be begun beside those that want so many tokens.

    If tokens are left over, or if there is a `MIN_CHUNK` for each.
    """
    return sum(wants) < budget or (len(wants) + 1) * MIN_CHUNK <= budget
