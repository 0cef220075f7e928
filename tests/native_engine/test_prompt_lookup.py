from __future__ import annotations

import random

import pytest

from native_engine.prompt_lookup import MAX_NGRAM, MAX_PLACES, MIN_NGRAM, PromptLookup


def by_scanning(token_ids: list[int], count: int) -> list[int]:
    """The same by definition: compare every earlier place, a copy going on in itself."""
    end = len(token_ids)
    places = [
        position
        for position in range(MIN_NGRAM, end)
        if token_ids[position - MIN_NGRAM : position] == token_ids[end - MIN_NGRAM :]
    ][-MAX_PLACES:]

    def agreement(position: int) -> int:
        lengths = range(MIN_NGRAM, min(MAX_NGRAM, position) + 1)
        return max(n for n in lengths if token_ids[position - n : position] == token_ids[end - n :])

    if not places:
        return []
    best = max(places, key=lambda position: (agreement(position), position))
    known = list(token_ids)
    for position in range(best, best + count):
        known.append(known[position])
    return known[end:]


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 6])
def test_guesses_what_followed_the_longest_and_latest_agreement(vocab_size: int) -> None:
    choose = random.Random(vocab_size)
    token_ids: list[int] = []
    lookup = PromptLookup(token_ids)
    for _ in range(400):
        token_ids += [choose.randrange(vocab_size) for _ in range(choose.randrange(4))]
        for count in (1, 4, 9):
            assert lookup.guess(count) == by_scanning(token_ids, count)


def test_does_not_guess_behind_what_never_came_up() -> None:
    assert PromptLookup(list(range(50))).guess(4) == []
    assert PromptLookup([1, 2]).guess(4) == []
    assert PromptLookup([]).guess(4) == []


def test_goes_on_with_a_period() -> None:
    assert PromptLookup([7, 1, 2, 1, 2, 1, 2]).guess(5) == [1, 2, 1, 2, 1]
    assert PromptLookup([5, 5, 5, 5]).guess(3) == [5, 5, 5]
