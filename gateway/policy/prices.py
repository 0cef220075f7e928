"""What tokens cost: integers from the policy file to the bill, so that nothing is lost on the way.

A price is written per million tokens, in the policy's currency, with up to six decimals: it is a
whole number of micro-units per million tokens. What a request costs is added up exactly and rounded
once, to the nearest micro-unit, half up; a request is off by half a micro-unit at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MICROS = 1_000_000
"""Micro-units in a unit of currency; also the tokens that a price is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one backend, in micro-units per million tokens."""

    input: int
    cached: int  # prompt tokens found in a prefix cache
    output: int

    def cost_micros(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """What a request costs, in micro-units. `cached_tokens` are some of `prompt_tokens`."""
        exact = (
            (prompt_tokens - cached_tokens) * self.input
            + cached_tokens * self.cached
            + completion_tokens * self.output
        )
        return (exact + MICROS // 2) // MICROS


def dearest(prices: Iterable[Price | None]) -> Price:
    """The most that an answer may cost, of which one backend may begin, and the dearest go on.

    Nothing is taken to be cached. A backend without a price costs nothing.
    """
    given = [price for price in prices if price is not None]
    input_micros = max((price.input for price in given), default=0)
    output_micros = max((price.output for price in given), default=0)
    return Price(input=input_micros, cached=input_micros, output=output_micros)
