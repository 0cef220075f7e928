"""The randomness of sampling: one uniform number per generated token, from (seed, position) alone.

Counter-based, so a token is the same in any batch, in any row and after any preemption; there is no
state to keep, share or restore. Source: the SplitMix64 finaliser of Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd
_MASK = 2**64 - 1


def uniform(seed: int, position: int) -> float:
    """A multiple of 2**-52 in [0, 1). `seed` is 64 bits, `position` counts tokens of a sequence.

    The seed is mixed before the position is added: neighbouring seeds share no noise. 52 bits, not
    53: the product with any float64 total then stays below that total.
    """
    return (splitmix64(splitmix64(seed) + position * _GOLDEN) >> 12) * 2.0**-52


def splitmix64(state: int) -> int:
    """The output of a SplitMix64 generator in `state`: 64 well-mixed bits."""
    mixed = (state + _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
