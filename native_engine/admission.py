"""How many tokens a set of sequences will have in the KV cache at most, while it runs to its end.

Pure arithmetic. Source: the token-exact admission of LightLLM (github.com/ModelTC/lightllm), later
the Past-Future scheduler, arXiv:2507.10150.
"""

from __future__ import annotations

from collections.abc import Iterable


def peak_tokens(loads: Iterable[tuple[int, int]]) -> int:
    """The most that is used at any time, for `(used, remaining)` tokens of each sequence.

    All gain a token per step, and give all back when their remaining tokens have come. What is used
    is therefore most when one of them ends: then it and those that have longer to go have each
    gained as many as it had remaining.
    """
    peak = total_used = 0
    longest_first = sorted(loads, key=lambda load: load[1], reverse=True)
    for count, (used, remaining) in enumerate(longest_first, start=1):
        total_used += used
        peak = max(peak, total_used + count * remaining)
    return peak
