from __future__ import annotations

from dataclasses import replace

import pytest

from backends.types import Event
from gateway.dialects.gather import best_first, gather, gather_prompts
from tests.gateway.dialects.events import entry, finished, token, told


def test_tokens_go_to_their_choice_in_order() -> None:
    events: list[Event] = [
        token("a", index=1),
        token("b", index=0),
        told("p", prompt=1),
        token("c", index=1),
        finished(),
    ]
    choices, end = gather(events, num_choices=2)
    assert gather_prompts(events) == {1: told("p", prompt=1).tokens}
    assert [[one.text for one in choice] for choice in choices] == [["b"], ["a", "c"]]
    assert end == finished()


def test_the_best_choice_has_the_highest_mean_and_of_equals_the_first() -> None:
    """G-BEST-OF: a long answer is not worse for being long."""
    choices = [
        [token("a", chosen=entry("a", -1.0))],
        [token("a", chosen=entry("a", -0.5))] * 4,
        [token("a", chosen=entry("a", -0.25)), token("b", chosen=entry("b", -0.75))],
        [token("a", chosen=entry("a", float("-inf")))],
    ]
    assert best_first(choices) == [1, 2, 0, 3]


def test_text_held_back_until_the_end_belongs_to_the_last_token() -> None:
    events: list[Event] = [token("a"), token("b", index=1), token("c")]
    choices, _ = gather([*events, replace(finished(), tails=("d", "", ""))], num_choices=3)
    assert [[one.text for one in choice] for choice in choices] == [["a", "cd"], ["b"], []]


def test_a_choice_that_got_no_token_in_time_is_never_the_best() -> None:
    assert best_first([[], [token("a", chosen=entry("a", -9.0))], []]) == [1, 0, 2]


def test_a_stream_that_was_not_drained_is_a_bug_of_ours() -> None:
    with pytest.raises(TypeError, match="ends with Finished"):
        gather([token("a")], num_choices=1)
