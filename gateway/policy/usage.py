"""What limits have left, held against what a request may take: for decisions that are tried out.

Serving asks the store, which counts and reserves in one step; this is the same comparison over
figures that somebody gives. Pure. A sliding window is taken as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.policy.match import Facts
from gateway.policy.model import BackendConfig, Limit, LimitCheck, LimitUse, Policy, Rate
from gateway.policy.prices import dearest

Usage = Mapping[str, Mapping[str, int]]
"""By the limit's name and the dimension, what is used and reserved. What is not named is unused."""


def amounts_of(policy: Policy, facts: Facts, backends: Sequence[str]) -> Mapping[str, int]:
    """By dimension, the most that a request may take if it goes to these."""
    prompt_tokens = facts.prompt_tokens or 0
    wanted = policy.estimate_output_tokens if facts.max_tokens is None else facts.max_tokens
    output_tokens = wanted * facts.num_choices
    price = dearest(policy.backends[name].price for name in backends)
    return {
        "requests": 1,
        "input_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "tokens": prompt_tokens + output_tokens,
        "cost": price.cost_micros(
            prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=output_tokens
        ),
        "concurrent": 1,
    }


def checked(
    uses: Sequence[LimitUse], amounts: Mapping[str, int], usage: Usage
) -> tuple[LimitCheck, ...]:
    """Every counter of these limits."""
    return tuple(
        LimitCheck(
            use.limit.name,
            use.place,
            dimension,
            usage.get(use.limit.name, {}).get(dimension, 0),
            amounts[dimension],
            amount,
        )
        for use in uses
        for dimension, amount in bounds_of(use.limit)
    )


def allowance_used_up(
    backend: BackendConfig, amounts: Mapping[str, int], usage: Usage
) -> LimitCheck | None:
    """The counter of our own allowance at a backend that has too little left, if one has."""
    uses = [LimitUse(limit, f"backend:{backend.name}") for limit in backend.limits]
    return next((one for one in checked(uses, amounts, usage) if not one.fits), None)


def bounds_of(limit: Limit) -> Iterator[tuple[str, int]]:
    """The dimensions that a limit counts, and how much there may be of each."""
    rates: tuple[tuple[str, Rate | None], ...] = (
        ("requests", limit.requests),
        ("input_tokens", limit.input_tokens),
        ("output_tokens", limit.output_tokens),
        ("tokens", limit.tokens),
        ("cost", limit.cost),
    )
    for dimension, rate in rates:
        if rate is not None:
            yield dimension, rate.amount
    if limit.concurrent is not None:
        yield "concurrent", limit.concurrent
