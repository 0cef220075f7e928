from __future__ import annotations

from hypothesis import given, strategies as st

from native_engine.admission import Admission, peak_tokens
from native_engine.block_manager import BlockManager, Prefix
from native_engine.output_lengths import OutputLengths
from tests.native_engine.sequences import make_sequence

LOADS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8)


@given(LOADS)
def test_the_peak_is_what_a_simulation_comes_to(loads: list[tuple[int, int]]) -> None:
    def used_after(steps: int) -> int:
        """A sequence still holds all its tokens in the step that gives it its last."""
        return sum(used + steps for used, remaining in loads if steps <= remaining)

    assert peak_tokens(loads) == max((used_after(steps) for steps in range(51)), default=0)


def test_what_ends_early_makes_room_for_what_ends_late() -> None:
    assert peak_tokens([(90, 1), (5, 90)]) == 97


def test_whoever_comes_in_finds_blocks_for_its_tokens_and_one_more() -> None:
    """Else a victim could be back in the next step, and push out whoever pushed it out."""
    block_manager = BlockManager(num_blocks=4, block_size=4)
    admission = Admission(block_manager, OutputLengths())
    nothing = Prefix(num_tokens=0, blocks=[])
    assert admission.missing_blocks(make_sequence(prompt=8), nothing) == 3 - 4
    block_manager.allocate(make_sequence(), 2)
    assert admission.missing_blocks(make_sequence(prompt=8), nothing) == 1
    assert admission.missing_blocks(make_sequence(prompt=16), nothing) == 4 - 2  # all there is
