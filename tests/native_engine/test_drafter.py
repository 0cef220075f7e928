from __future__ import annotations

from native_engine.drafter import FIRST_LENGTH, MAX_PAUSE, Drafter

PERIOD = [1, 2, 3, 4, 5]


def test_a_guess_that_came_true_whole_doubles_the_next() -> None:
    drafter = Drafter(PERIOD * 4)
    assert len(drafter.guess(100)) == FIRST_LENGTH
    drafter.record(FIRST_LENGTH, FIRST_LENGTH)
    assert drafter.guess(100) == [PERIOD[i % 5] for i in range(2 * FIRST_LENGTH)]


def test_a_guess_that_failed_half_way_is_cut_to_what_held_and_one_more() -> None:
    drafter = Drafter(PERIOD * 4)
    for _ in range(3):
        drafter.record(8, 8)
    drafter.record(16, 4)
    assert len(drafter.guess(100)) == 5


def test_a_short_guess_that_came_true_makes_no_long_one_shorter() -> None:
    drafter = Drafter(PERIOD * 4)
    drafter.record(8, 8)
    drafter.record(1, 1)
    assert len(drafter.guess(100)) == 16


def test_pauses_twice_as_long_after_each_failure_in_a_row_and_tries_again() -> None:
    token_ids = PERIOD * 4
    drafter = Drafter(token_ids)
    pauses = []
    for _ in range(9):
        drafter.record(3, 0)
        pauses.append(0)
        while not drafter.guess(1):
            token_ids.append(PERIOD[len(token_ids) % 5])
            pauses[-1] += 1
    assert pauses == [1, 2, 4, 8, 16, 32, MAX_PAUSE, MAX_PAUSE, MAX_PAUSE]
    drafter.record(1, 1)
    drafter.record(1, 0)
    token_ids.append(PERIOD[len(token_ids) % 5])
    assert drafter.guess(1)


def test_guesses_no_more_than_there_is_room_for() -> None:
    drafter = Drafter(PERIOD * 4)
    assert [len(drafter.guess(most)) for most in (-2, 0, 1, 2)] == [0, 0, 1, 2]
