from __future__ import annotations

import pytest

from native_engine.output_lengths import (
    ENOUGH,
    LEAST_QUANTILE,
    LOWER,
    MAX_TENANTS,
    MOST_QUANTILE,
    RAISE,
    UNKNOWN_LENGTH,
    WINDOW,
    OutputLengths,
)


def lengths_of(*outputs: int, tenant: str = "a") -> OutputLengths:
    lengths = OutputLengths()
    for output in outputs:
        lengths.record_end(tenant, output)
    return lengths


def test_knows_nothing_at_first_and_takes_a_usual_length() -> None:
    lengths = lengths_of(*[3] * (ENOUGH - 1))
    assert lengths.expect("a", 0) == UNKNOWN_LENGTH
    assert lengths.expect("a", UNKNOWN_LENGTH - 1) == 1
    lengths.record_end("a", 3)
    assert lengths.expect("a", 0) == 3


def test_a_tenant_is_judged_by_its_own_outputs_and_a_new_one_by_all() -> None:
    lengths = lengths_of(*[10] * 20, tenant="short")
    for _ in range(10):
        lengths.record_end("long", 100)
    assert lengths.expect("short", 0) == 10
    assert lengths.expect("long", 0) == 100
    assert lengths.expect("new", 0) == 100


def test_what_got_longer_than_some_is_one_of_those_that_get_longer_still() -> None:
    lengths = lengths_of(*range(10, 110, 10))
    assert lengths.quantile == pytest.approx(0.725)
    assert lengths.expect("a", 0) == 80
    assert lengths.expect("a", 80) == 100 - 80


@pytest.mark.parametrize(("num_outputs", "expected"), [(100, 100), (250, 250)])
def test_what_outlives_all_is_expected_to_get_as_long_again(
    num_outputs: int, expected: int
) -> None:
    assert lengths_of(*[100] * 10).expect("a", num_outputs) == expected


def test_a_preemption_raises_the_quantile_and_quiet_lowers_it_within_bounds() -> None:
    lengths = OutputLengths()
    start = lengths.quantile
    lengths.record_preemption()
    assert lengths.quantile == start + RAISE
    for _ in range(100):
        lengths.record_preemption()
    assert lengths.quantile == MOST_QUANTILE
    lengths.record_end("a", 1)
    assert lengths.quantile == MOST_QUANTILE - LOWER
    for _ in range(1000):
        lengths.record_end("a", 1)
    assert lengths.quantile == LEAST_QUANTILE


def test_the_highest_quantile_is_one_of_the_lengths() -> None:
    lengths = lengths_of(*range(1, 9))
    for _ in range(100):
        lengths.record_preemption()
    assert lengths.expect("a", 7) == 1
    assert lengths.expect("a", 0) == 8


def test_forgets_all_but_the_last_outputs_and_tenants() -> None:
    lengths = lengths_of(*[500] * 100, *[1] * WINDOW)
    assert lengths.expect("a", 0) == 1
    for index in range(2 * MAX_TENANTS):
        lengths.record_end(str(index), 5)
    assert len(lengths._tenants) == MAX_TENANTS
    assert len(lengths._tenants[str(2 * MAX_TENANTS - 1)].lengths) == 1
