"""`use`, `split`, `pool`, `fallback`: which backends a decision names, in which order, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from backends.base import BackendState
from gateway.policy.choose import BackendHealth, Health
from gateway.policy.decide import decide
from gateway.policy.load import parse
from gateway.policy.match import Facts
from gateway.policy.model import FAIL_OVER_ON, Policy, RejectReason, Retry
from tests.gateway.policy.examples import health_of

READY, STARTING, DOWN = BackendState.READY, BackendState.STARTING, BackendState.DOWN
ALL = health_of(a=READY, b=READY, c=READY)


def policy_with(route: str) -> Policy:
    return parse(
        f"""\
version: 1
backends:
  a: {{engine: echo}}
  b: {{engine: echo, limits: [allowance]}}
  c: {{engine: echo}}
models: {{m: {{}}}}
limits:
  day: {{tokens: 1k/day, requests: 5/min}}
  allowance: {{requests: 10/min}}
plans:
  free: {{models: [m], limits: [day]}}
  pro: {{models: [m], priority: high}}
routes:
  - {{name: r, {route}}}
defaults: {{model: m, estimate_output: 100}}
""",
        "policy.yaml",
    )


def asked(plan: str = "pro", session: str = "") -> Facts:
    return Facts(
        tenant="t",
        plan=plan,
        model="m",
        endpoint="chat",
        stream=False,
        session=session,
        prompt_tokens=10,
    )


def firsts(policy: Policy, health: Health = ALL, sessions: int = 4000) -> Counter[str]:
    decisions = (decide(policy, asked(), health, seed=seed) for seed in range(sessions))
    return Counter(decision.attempts[0] for decision in decisions)


def test_a_split_sends_each_its_share() -> None:
    counts = firsts(policy_with("split: {a: 90, b: 10%}"))
    assert abs(counts["b"] / 4000 - 0.1) < 0.02
    assert counts["a"] + counts["b"] == 4000


def test_of_a_split_the_others_come_after_the_drawn_one_and_before_fallbacks() -> None:
    policy = policy_with("split: {a: 50, b: 50}, fallback: [c]")
    orders = {decide(policy, asked(), ALL, seed=seed).attempts for seed in range(100)}
    assert orders == {("a", "b", "c"), ("b", "a", "c")}


def test_a_member_of_a_split_that_is_down_loses_its_share_to_the_others() -> None:
    counts = firsts(policy_with("split: {a: 90, b: 10}"), health_of(a=DOWN, b=READY), 100)
    assert counts == {"b": 100}


def test_a_fallback_may_name_one_of_a_split() -> None:
    policy = policy_with("split: {a: 50, b: 50}, fallback: [b, c]")
    for seed in range(20):
        assert sorted(decide(policy, asked(), ALL, seed=seed).attempts) == ["a", "b", "c"]


def test_a_session_stays_with_what_it_drew() -> None:
    policy = policy_with("split: {a: 50, b: 50}, affinity: session")
    for session in ("x", "y", "z"):
        drawn = {
            decide(policy, asked(session=session), ALL, seed=seed).attempts[0] for seed in range(30)
        }
        assert len(drawn) == 1
    every = {decide(policy, asked(session=str(n)), ALL).attempts[0] for n in range(50)}
    assert every == {"a", "b"}


def test_without_affinity_a_session_means_nothing() -> None:
    policy = policy_with("split: {a: 50, b: 50}")
    drawn = {decide(policy, asked(session="x"), ALL, seed=seed).attempts[0] for seed in range(50)}
    assert drawn == {"a", "b"}


def test_sessions_of_two_tenants_are_drawn_apart() -> None:
    policy = policy_with("split: {a: 50, b: 50}, affinity: session")
    names = [
        decide(policy, Facts(tenant=str(n), plan="pro", model="m", endpoint="chat", stream=False,
                             session="s"), ALL).attempts[0]
        for n in range(50)
    ]  # fmt: skip
    assert {*names} == {"a", "b"}


def test_a_pool_takes_the_least_busy_of_those_that_are_up() -> None:
    policy = policy_with("pool: [a, b, c]")
    health = {
        "a": BackendHealth(READY, 5),
        "b": BackendHealth(READY, 2),
        "c": BackendHealth(DOWN, 0),
    }
    assert decide(policy, asked(), health).attempts == ("b", "a")


def test_a_pool_by_hash_keeps_sessions_and_a_starting_one_waits() -> None:
    policy = policy_with("pool: [a, b], balance: hash")
    assert policy.has_affinity
    drawn = {decide(policy, asked(session="s"), ALL, seed=seed).attempts for seed in range(30)}
    assert len(drawn) == 1
    health = health_of(a=STARTING, b=READY)
    assert decide(policy, asked(session="s"), health).attempts == ("b", "a")


def test_a_fallback_with_a_condition_is_for_those_it_holds_of() -> None:
    policy = policy_with("use: a, fallback: [{use: b, when: {plan: pro}}, c]")
    assert decide(policy, asked("pro"), ALL).attempts == ("a", "b", "c")
    free = decide(policy, asked("free"), ALL)
    assert free.attempts == ("a", "c")
    assert free.rejected_candidates == (("b", "the fallback's condition on 'plan' does not hold"),)


def test_a_refusal_says_of_each_candidate_why() -> None:
    policy = policy_with("use: a, fallback: [{use: b, when: {plan: pro}}, c]")
    health = {"a": BackendHealth(DOWN, why="its circuit is open"), "b": BackendHealth(READY)}
    decision = decide(policy, asked("free"), health)
    assert decision.reject is not None
    assert decision.reject.reason is RejectReason.NO_BACKEND
    assert decision.reject.message == (
        "no backend of route 'r' can take it: a (its circuit is open), "
        "b (the fallback's condition on 'plan' does not hold), c (nobody reports on it)"
    )


def test_a_route_may_have_a_priority_of_its_own() -> None:
    assert decide(policy_with("use: a"), asked("pro"), ALL).priority == 1
    assert decide(policy_with("use: a, priority: low"), asked("pro"), ALL).priority == -1


def test_what_a_route_does_not_say_of_failures_the_defaults_do() -> None:
    plain = decide(policy_with("use: a"), asked(), ALL)
    assert plain.fail_over_on == {*FAIL_OVER_ON}
    assert plain.retry == Retry(1, 0.1)
    own = "use: a, retry: {attempts: 3}, fail_over_on: [connect, 429]"
    decision = decide(policy_with(own), asked(), ALL)
    assert decision.fail_over_on == {"connect", "429"}
    assert decision.retry == Retry(3, 0.1)
    text = "defaults: {model: m, estimate_output: 100"
    more = "retry: {attempts: 2, budget: 50%}, fail_over_on: []"
    compiled = parse(_text_of("use: a").replace(text, f"{text}, {more}"), "p")
    assert decide(compiled, asked(), ALL).retry == Retry(2, 0.5)
    assert decide(compiled, asked(), ALL).fail_over_on == frozenset()


def _text_of(route: str) -> str:
    return (
        "version: 1\nbackends: {a: {engine: echo}}\nmodels: {m: {}}\n"
        'plans: {pro: {models: "*"}}\n'
        f"routes: [{{name: r, {route}}}]\n"
        "defaults: {model: m, estimate_output: 100}\n"
    )


@pytest.mark.parametrize(
    ("used", "known", "limit"),
    [
        ({}, {}, ""),
        ({"day": {"tokens": 890}}, {}, ""),
        ({"day": {"tokens": 891}}, {}, "day"),  # 10 of the prompt and 100 by estimate
        ({"day": {"tokens": 889}}, {"max_tokens": 102}, "day"),
        ({"day": {"tokens": 780}}, {"num_choices": 2}, ""),
        ({"day": {"tokens": 791}}, {"num_choices": 2}, "day"),
        ({"day": {"requests": 5}}, {}, "day"),
    ],
)
def test_limits_are_checked_against_usage_that_is_given(
    used: dict[str, dict[str, int]], known: dict[str, Any], limit: str
) -> None:
    decision = decide(policy_with("use: a"), replace(asked("free"), **known), ALL, used)
    assert (decision.reject.limit if decision.reject else "") == limit
    if limit:
        assert decision.reject is not None
        assert decision.reject.reason is RejectReason.LIMIT
    assert [(one.limit, one.place, one.dimension) for one in decision.limits_checked] == [
        ("day", "plan:free", "requests"),
        ("day", "plan:free", "tokens"),
    ]


def test_an_allowance_that_is_used_up_takes_its_backend_out() -> None:
    policy = policy_with("use: b, fallback: [c]")
    decision = decide(policy, asked(), ALL, {"allowance": {"requests": 10}})
    assert decision.attempts == ("c",)
    assert decision.rejected_candidates == (("b", "its allowance 'allowance' is used up"),)


def test_without_usage_no_limit_is_looked_at() -> None:
    assert decide(policy_with("use: a"), asked("free"), ALL).limits_checked == ()
