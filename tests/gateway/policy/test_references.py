from __future__ import annotations

import pytest

from gateway.policy.problems import Span
from tests.gateway.policy.examples import problems_after


@pytest.mark.parametrize(
    ("old", "new", "name", "hint", "write"),
    [
        ("use: spare", "use: spear", "spear", "did you mean 'spare'?", "use: spare"),
        ("[spare, large]", "[spare, lrge]", "lrge", "did you mean 'large'?", "large"),
        ("limits: [free]", "limits: [fre]", "fre", "did you mean 'free'?", "free"),
        ("models: [chat]", "models: [chta]", "chta", "did you mean 'chat'?", "chat"),
        ("plan: pro", "plan: prx", "prx", "did you mean 'pro'?", "plan: pro"),
        ("plan: pro", "plan: zzz", "zzz", "plans has free, pro", ""),
        ('"team/*"', '"tame/*"', "tame/*", "models has chat, team/big", ""),
        ("  model: chat\n", "  model: chaat\n", "chaat", "did you mean 'chat'?", "model: chat"),
        ("  model: chat\n", "  model: gpt-4o-mini\n", "gpt-4o-mini", "it is an alias of 'chat'",
         "model: chat"),
    ],
)  # fmt: skip
def test_refuses_a_name_that_leads_nowhere(
    old: str, new: str, name: str, hint: str, write: str
) -> None:
    (problem,) = problems_after(old, new)
    assert problem.code == "unknown-ref"
    assert problem.message.startswith(f"'{name}' is not one of ")
    assert (problem.hint, problem.write) == (hint, write)


def test_a_plan_names_models_in_full() -> None:
    """Case Q-MODEL-BYPASS: what a plan allows is no matter of patterns."""
    (problem,) = problems_after("models: [chat]", 'models: ["team/*"]')
    assert problem.code == "unknown-ref"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: acme-streams", "name: long-prompts", "'long-prompts' is already a route"),
        ("team/big: {}", "team/big: {aliases: [chat]}", "'chat' is already a model or alias"),
        ("Chat-Latest]", "gpt-4o-mini]", "'gpt-4o-mini' is already a model or alias"),
        ("limits: [free]", "limits: [free, free]", "'free' is already a limit of this plan"),
        ("models: [chat]", "models: [chat, chat]", "'chat' is already a model of this plan"),
    ],
)
def test_refuses_a_name_given_twice_showing_both_places(old: str, new: str, message: str) -> None:
    (problem,) = problems_after(old, new)
    assert (problem.code, problem.message) == ("duplicate-name", message)
    assert problem.also is not None


@pytest.mark.parametrize("fallback", ["[small, spare]", "[spare, large, spare]"])
def test_refuses_a_route_that_tries_a_backend_twice(fallback: str) -> None:
    """Case R-FALLBACK-LOOP: each target at most once, found when the policy is loaded."""
    (problem,) = problems_after("[spare, large]", fallback)
    assert problem.code == "fallback-cycle"


def test_a_misspelt_key_does_not_hide_a_misspelt_name() -> None:
    codes = [problem.code for problem in problems_after("use: spare", "use: spear\n    uze: x")]
    assert codes == ["unknown-ref", "unknown-key"]


def test_points_at_the_name() -> None:
    (problem,) = problems_after("[spare, large]", "[spare, lrge]")
    assert problem.span == Span(line=26, column=23, width=4)
