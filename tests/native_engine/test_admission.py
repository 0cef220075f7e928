from __future__ import annotations

from hypothesis import given, strategies as st

from native_engine.admission import peak_tokens

LOADS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


@given(LOADS)
def test_the_peak_is_what_a_simulation_comes_to(loads: list[tuple[int, int]]) -> None:
    def used_after(steps: int) -> int:
        """A sequence still holds all its tokens in the step that gives it its last."""
        return sum(used + steps for used, remaining in loads if steps <= remaining)

    assert peak_tokens(loads) == max((used_after(steps) for steps in range(51)), default=0)


def test_what_ends_early_makes_room_for_what_ends_late() -> None:
    assert peak_tokens([(90, 1), (5, 90)]) == 97
