"""Both answers are sound: held against requests that are drawn at random."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from gateway.policy.cover import covers, may_meet
from gateway.policy.match import Facts, Match, Names, Range, TimeOfDay
from tests.gateway.policy.examples import policy

POLICY = policy()
TEXTS = ["a", "ab", "b", ""]
GLOBS = [*TEXTS, "*", "a*", "*b"]


def names(*known: str) -> st.SearchStrategy[Names | None]:
    globs = st.lists(st.sampled_from([*known]), min_size=1, max_size=2).map(tuple)
    return st.none() | st.builds(Names, globs, st.booleans())


ENTRIES = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.builds(Names, st.just(("a*",)), st.booleans())),
    max_size=1,
).map(tuple)
RANGES = st.none() | st.builds(Range, st.none() | st.integers(0, 4), st.none() | st.integers(0, 4))
MATCHES = st.builds(
    Match,
    models=names("chat", "team/*", "team/big", "*"),
    tenants=names(*GLOBS),
    plans=names("free", "pro", "p*"),
    endpoints=st.none() | st.just(Names(("chat", "generate"))),
    stream=st.none() | st.booleans(),
    headers=ENTRIES,
    tags=ENTRIES,
    prompt_tokens=RANGES,
    max_tokens=RANGES,
    time=st.none() | st.just(TimeOfDay(0, 60)),
)
FACTS = st.builds(
    Facts,
    tenant=st.sampled_from(TEXTS),
    plan=st.sampled_from(["free", "pro"]),
    model=st.sampled_from(["chat", "team/big"]),
    endpoint=st.sampled_from(["chat", "completions", "generate"]),
    stream=st.booleans(),
    headers=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(TEXTS)),
    tags=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(TEXTS)),
    prompt_tokens=st.none() | st.integers(0, 5),
    max_tokens=st.none() | st.integers(0, 5),
    time_s=st.sampled_from([0.0, 7200.0]),
)


@settings(max_examples=300)
@given(MATCHES, MATCHES, st.lists(FACTS, min_size=20, max_size=20))
def test_no_request_escapes_a_match_that_covers(
    earlier: Match, later: Match, requests: list[Facts]
) -> None:
    takes_all = covers(POLICY, earlier, later)
    for facts in requests:
        if takes_all and not later.first_failing(facts, facts.model):
            assert not earlier.first_failing(facts, facts.model)


@settings(max_examples=300)
@given(MATCHES, MATCHES, st.lists(FACTS, min_size=20, max_size=20))
def test_no_request_is_matched_by_two_that_cannot_meet(
    one: Match, other: Match, requests: list[Facts]
) -> None:
    for facts in requests:
        if not one.first_failing(facts, facts.model) and not other.first_failing(
            facts, facts.model
        ):
            assert may_meet(POLICY, one, other)


@given(MATCHES)
def test_a_match_covers_itself_and_is_covered_by_everything(match: Match) -> None:
    assert covers(POLICY, match, match)
    assert covers(POLICY, Match(), match)
