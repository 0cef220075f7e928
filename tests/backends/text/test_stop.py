from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, strategies as st

from backends.text.stop import NO_STOPS, StopMatcher, StopStrings

STOPS = ("ab", "aba", "bb")


def first_match(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """(where it starts, the stop): the match complete first, of those the longest."""
    ends = [
        (start + len(stop), -len(stop), stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start)
    ]
    if not ends:
        return None
    end, _, stop = min(ends)
    return end - len(stop), stop


def must_hold(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest suffix that is a proper prefix of a stop."""
    return max(
        size
        for size in range(len(text) + 1)
        if size == 0
        or any(stop != text[-size:] and stop.startswith(text[-size:]) for stop in stops)
    )


def check(chunks: list[str], stops: tuple[str, ...], *, include: bool = False) -> None:
    """Feed the chunks; compare with a search of the whole text after every one of them."""
    matcher = StopMatcher(StopStrings(stops), include_stop_str=include)
    shown = text = ""
    for chunk in chunks:
        text += chunk
        emitted, matched = matcher.push(chunk)
        shown += emitted
        found = first_match(text, stops)
        if found is not None:
            start, stop = found
            assert matched == stop
            assert shown == text[: start + len(stop) if include else start]
            assert matcher.finish() == ""
            return
        assert matched is None
        assert shown == text[: len(text) - must_hold(text, stops)]
    assert shown + matcher.finish() == text


@pytest.mark.parametrize("length", range(11))
def test_equals_an_offline_search_and_holds_back_the_least(length: int) -> None:
    """Promise 10, S-STOP-SPLIT: all strings over {a, b} up to length 10, in random chunks."""
    chance = random.Random(length)
    for letters in product("ab", repeat=length):
        check(list(letters), STOPS)
        check(["".join(letters)], STOPS, include=True)
        chunks = [""]
        for letter in letters:
            if chance.random() < 0.5:
                chunks.append("")
            chunks[-1] += letter
        check(chunks, STOPS)


@given(
    chunks=st.lists(st.text("abc", max_size=4), max_size=10),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    include=st.booleans(),
)
def test_random_stops_equal_an_offline_search(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    check(chunks, tuple(stops), include=include)


def test_finds_a_stop_in_the_middle_of_a_chunk() -> None:
    """E-STOP-MIDTOKEN"""
    matcher = StopMatcher(StopStrings(("Pari",)))
    assert matcher.push("I love") == ("I love", None)
    assert matcher.push(" Paris") == (" ", "Pari")


def test_the_stop_complete_first_wins_whatever_their_order() -> None:
    """E-STOP-MIDTOKEN: 'ab' and 'abc', and a later-listed one that occurs first."""
    assert StopMatcher(StopStrings(("abc", "ab"))).push("xabc") == ("x", "ab")
    assert StopMatcher(StopStrings(("zz", "ca"))).push("abcazz") == ("ab", "ca")


def test_of_stops_complete_at_one_character_the_longest_wins() -> None:
    assert StopMatcher(StopStrings(("c", "abc"))).push("xabc") == ("x", "abc")


def test_a_stop_can_be_kept_in_the_text() -> None:
    matcher = StopMatcher(StopStrings(("END",)), include_stop_str=True)
    assert matcher.push("xEN") == ("x", None)
    assert matcher.push("D and more") == ("END", "END")


def test_releases_what_turns_out_to_be_no_stop() -> None:
    """S-STOP-SPLIT: the first letters of a stop that never comes are not lost."""
    matcher = StopMatcher(StopStrings(("zzzebra",)))
    assert matcher.push("a zzz") == ("a ", None)
    assert matcher.push("z") == ("z", None)
    assert matcher.push("!") == ("zzz!", None)
    assert matcher.push("zz") == ("", None)
    assert matcher.finish() == "zz"


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher(NO_STOPS)
    assert matcher.push("anything") == ("anything", None)
    assert matcher.finish() == ""


def test_a_lone_surrogate_in_a_stop_never_matches_and_does_no_harm() -> None:
    """I-SURROGATE"""
    assert StopMatcher(StopStrings(("\ud800",))).push("text") == ("text", None)


class CountingStops(StopStrings):
    """Counts the automaton's moves."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.moves = 0
        super().__init__(stops)
        self.moves = 0

    def step(self, state: int, character: str) -> int:
        self.moves += 1
        return super().step(state, character)


def test_reads_each_character_once() -> None:
    """A text of repeated near-matches is not scanned again for each token."""
    stops = CountingStops(("a" * 500 + "b",))
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push("aaa")[0] for _ in range(1000))
    assert stops.moves == 3000
    assert shown + matcher.finish() == "a" * 3000
