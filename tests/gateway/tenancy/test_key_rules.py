"""What operators may write of a key, and what it means."""

from __future__ import annotations

import pytest

from gateway.networks import parse_address
from gateway.tenancy.key_rules import ALL_SCOPES, KeyRules, KeyRulesError, KeyScope, parse_rules


def test_a_rule_that_is_not_written_does_not_narrow() -> None:
    rules = parse_rules()
    assert rules == KeyRules()
    assert (rules.scopes, rules.models, rules.networks) == (ALL_SCOPES, ("*",), None)
    assert rules.allows_address(None)


def test_rules_are_read_in_any_order_and_shown_in_their_own() -> None:
    rules = parse_rules(scopes=["tokenize", "inference"], networks=["::1", "10.0.0.0/8"])
    assert rules.scopes == {KeyScope.INFERENCE, KeyScope.TOKENIZE}
    assert rules.scope_words() == ["inference", "tokenize"]
    assert rules.network_words() == ["::1/128", "10.0.0.0/8"]


def test_an_address_that_is_not_known_lies_in_no_network() -> None:
    rules = parse_rules(networks=["0.0.0.0/0"])
    assert rules.allows_address(parse_address("1.2.3.4"))
    assert not rules.allows_address(None)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"scopes": ["everything"]}, "'everything' is no scope; the scopes are inference, models,"),
        ({"scopes": [""]}, "'' is no scope"),
        ({"models": ["sm all"]}, "'sm all' cannot be a model's name"),
        ({"models": [""]}, "'' cannot be a model's name"),
        ({"models": ["a\n"]}, "cannot be a model's name"),
        ({"networks": ["10.0.0.1/8"]}, "'10.0.0.1/8' is no network"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(rules: dict[str, list[str]], message: str) -> None:
    with pytest.raises(KeyRulesError, match=message):
        parse_rules(**rules)
