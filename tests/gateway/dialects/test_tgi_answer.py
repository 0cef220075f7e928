from __future__ import annotations

from backends.types import Token
from gateway.dialects.tgi_answer import token_object, top_token_objects
from tests.gateway.dialects.events import end_of_turn, entry, token


def test_a_special_token_is_shown_by_its_name() -> None:
    assert token_object(end_of_turn())["text"] == "<|im_end|>"


def test_an_upstream_that_tells_no_id_and_no_logprob_still_makes_a_token() -> None:
    assert token_object(Token(index=0, text="a")) == {
        "id": 0,
        "text": "a",
        "logprob": None,
        "special": False,
    }


def test_minus_infinity_is_a_number_json_has() -> None:
    assert token_object(token("a", chosen=entry("a", float("-inf"))))["logprob"] == -9999.0


def test_only_the_chosen_alternative_is_known_to_be_special() -> None:
    chosen = entry("<|im_end|>", token_id=2)
    made = token("", chosen=chosen, top=(chosen, entry("a", -2.0, token_id=3)), special=True)
    assert [one["special"] for one in top_token_objects(made)] == [True, False]
