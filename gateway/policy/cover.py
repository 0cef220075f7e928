"""Whether one match takes all that another takes, or anything of it: for routes nobody can reach.

Sound, not complete: an answer "covers" is right, and so is an answer "cannot meet"; where neither
can be told of globs and times, the answer is the one that blames nobody. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.policy.match import ENDPOINTS, Match, Names, Range
from gateway.policy.model import Policy


def covers(policy: Policy, earlier: Match, later: Match) -> bool:
    """Whether every request that `later` matches is matched by `earlier` too."""
    return (  # cheap questions first: this is asked of every pair of routes
        earlier.stream in (None, later.stream)
        and earlier.time in (None, later.time)
        and _texts_cover(earlier.tenants, later.tenants)
        and _all_cover(earlier.headers, later.headers)
        and _all_cover(earlier.tags, later.tags)
        and _range_covers(earlier.prompt_tokens, later.prompt_tokens)
        and _range_covers(earlier.max_tokens, later.max_tokens)
        and _known(ENDPOINTS, later.endpoints) <= _known(ENDPOINTS, earlier.endpoints)
        and _known(policy.models, later.models) <= _known(policy.models, earlier.models)
        and _known(policy.plans, later.plans) <= _known(policy.plans, earlier.plans)
    )


def may_meet(policy: Policy, one: Match, other: Match) -> bool:
    """Whether some request may be matched by both."""
    return (
        (one.stream is None or other.stream in (None, one.stream))
        and _ranges_meet(one.prompt_tokens, other.prompt_tokens)
        and _ranges_meet(one.max_tokens, other.max_tokens)
        and _texts_meet(one.tenants, other.tenants)
        and not _known(ENDPOINTS, one.endpoints).isdisjoint(_known(ENDPOINTS, other.endpoints))
        and not _known(policy.models, one.models).isdisjoint(_known(policy.models, other.models))
        and not _known(policy.plans, one.plans).isdisjoint(_known(policy.plans, other.plans))
    )


def _known(universe: Iterable[str], names: Names | None) -> frozenset[str]:
    """Those of all that there are which `names` mean."""
    return frozenset(each for each in universe if names is None or names.hold(each))


def _texts_cover(earlier: Names | None, later: Names | None) -> bool:
    """Of texts of which nobody knows all. Taking a later glob for a text is sound: its `*` can only
    be met by an earlier `*`.
    """
    if earlier is None or (not earlier.negated and "*" in earlier.globs):
        return True
    if later is None:
        return False
    if not earlier.negated:
        return not later.negated and all(map(earlier.hold, later.globs))
    if later.negated:  # all that the earlier one leaves out is left out by the later one as well
        left_out = Names(later.globs)
        return all(map(left_out.hold, earlier.globs))
    return not any("*" in glob for glob in later.globs) and all(map(earlier.hold, later.globs))


def _texts_meet(one: Names | None, other: Names | None) -> bool:
    """Told only where one side lists its texts."""
    for listed, asked in ((one, other), (other, one)):
        if listed is None or asked is None or listed.negated:
            continue
        if not any("*" in glob for glob in listed.globs):
            return any(map(asked.hold, listed.globs))
    return True


def _all_cover(
    earlier: tuple[tuple[str, Names], ...], later: tuple[tuple[str, Names], ...]
) -> bool:
    """Whoever asks for a header or a tag asks for its presence, too."""
    asked = dict(later)
    return all(name in asked and _texts_cover(names, asked[name]) for name, names in earlier)


def _range_covers(earlier: Range | None, later: Range | None) -> bool:
    if earlier is None:
        return True
    if later is None:
        return False  # it also takes those of which the number is not known
    low_fits = earlier.low is None or (later.low or 0) >= earlier.low
    high_fits = earlier.high is None or (later.high is not None and later.high <= earlier.high)
    return low_fits and high_fits


def _ranges_meet(one: Range | None, other: Range | None) -> bool:
    if one is None or other is None:
        return True
    lows = [each.low for each in (one, other) if each.low is not None]
    highs = [each.high for each in (one, other) if each.high is not None]
    return not lows or not highs or max(lows) <= min(highs)
