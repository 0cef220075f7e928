from __future__ import annotations

import pytest

from gateway.dialects.fields import validate
from gateway.dialects.openai_fields import (
    IGNORED,
    UNBUILT,
    GenerationFields,
    check_fan_out,
)
from gateway.errors import InvalidRequest


@pytest.mark.parametrize(
    ("given", "seed"), [(None, 99), (0, 0), (5, 5), (-1, 2**64 - 1), (-(2**63), 2**63)]
)
def test_a_seed_is_64_bits_and_the_drawn_one_without(given: int | None, seed: int) -> None:
    assert validate(GenerationFields, {"seed": given}).sampling(drawn_seed=99).seed == seed


def test_a_field_has_one_class() -> None:
    read = set(GenerationFields.model_fields)
    assert not read & IGNORED
    assert not read & UNBUILT.keys()
    assert not IGNORED & UNBUILT.keys()


def test_as_many_choices_as_allowed_and_no_more() -> None:
    """I-FANOUT."""
    check_fan_out(128, 1)
    with pytest.raises(InvalidRequest) as caught:
        check_fan_out(2, 65)
    assert caught.value.param == "n"


def test_a_cache_salt_is_1_to_1024_characters() -> None:
    assert validate(GenerationFields, {"cache_salt": "s" * 1024}).cache_salt == "s" * 1024
    assert validate(GenerationFields, {"cache_salt": None}).cache_salt is None
    for wrong in ("", "s" * 1025, 7):
        with pytest.raises(InvalidRequest) as caught:
            validate(GenerationFields, {"cache_salt": wrong})
        assert caught.value.param == "cache_salt"
