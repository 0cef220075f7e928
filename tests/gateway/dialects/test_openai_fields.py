from __future__ import annotations

import pytest

from gateway.dialects.fields import validate
from gateway.dialects.openai_fields import (
    IGNORED,
    UNBUILT,
    GenerationFields,
    check_fan_out,
    check_min_tokens,
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
    check_fan_out(128, 1, param="n")
    with pytest.raises(InvalidRequest) as caught:
        check_fan_out(2, 65, param="best_of")
    assert caught.value.param == "best_of"
    assert "at most 64" in caught.value.message


def test_a_cache_salt_is_1_to_1024_characters() -> None:
    assert validate(GenerationFields, {"cache_salt": "s" * 1024}).cache_salt == "s" * 1024
    assert validate(GenerationFields, {"cache_salt": None}).cache_salt is None
    for wrong in ("", "s" * 1025, 7):
        with pytest.raises(InvalidRequest) as caught:
            validate(GenerationFields, {"cache_salt": wrong})
        assert caught.value.param == "cache_salt"


def test_min_tokens_may_be_as_many_as_max_tokens_and_no_more() -> None:
    """E-MIN-TOKENS."""
    check_min_tokens(5, 5)
    with pytest.raises(InvalidRequest) as caught:
        check_min_tokens(6, 5)
    assert caught.value.param == "min_tokens"


@pytest.mark.parametrize(
    "key", ["foo", "-1", "05", "1.0", "", " 1", "1e3", str(2**31), str(2**63), "٣"]
)
def test_a_key_of_logit_bias_is_a_token_id_in_its_one_spelling(key: str) -> None:
    """I-STOP-IDS-OOV."""
    with pytest.raises(InvalidRequest) as caught:
        validate(GenerationFields, {"logit_bias": {"7": 1, key: 1}})
    assert (caught.value.param or "").startswith("logit_bias")
