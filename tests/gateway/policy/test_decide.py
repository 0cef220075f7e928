from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from backends.base import BackendState
from gateway.policy.choose import Health
from gateway.policy.decide import (
    allowed_models,
    decide,
    reachable_backends,
    resolve_model,
)
from gateway.policy.load import parse
from gateway.policy.match import Facts, glob_matches
from gateway.policy.model import Policy, RejectReason, Timeouts
from tests.gateway.policy.examples import TEXT, facts, health_of, policy

READY, STARTING, DOWN = BackendState.READY, BackendState.STARTING, BackendState.DOWN
ALL_READY = health_of(small=READY, spare=READY, large=READY)


def reject_reason(given_facts: Facts, health: Health = ALL_READY) -> RejectReason | None:
    reject = decide(policy(), given_facts, health).reject
    return reject.reason if reject else None


def test_takes_the_first_route_that_matches_and_says_why() -> None:
    decision = decide(policy(), facts(stream=True), ALL_READY)
    assert decision.route == "chat-default"
    assert decision.decision_id == f"{policy().digest}/chat-default"
    assert decision.trace == (
        ("long-prompts", "prompt_tokens"),
        ("acme-streams", "tenant"),
        ("chat-default", "matched"),
    )
    assert decision.reject is None


def test_hands_on_what_the_plan_and_the_route_say() -> None:
    decision = decide(policy(), facts(plan="free"), ALL_READY)
    assert [(use.limit.name, use.place) for use in decision.limits] == [("free", "plan:free")]
    assert (decision.priority, decision.weight) == (-1, 1.0)
    assert decide(policy(), facts(plan="pro"), ALL_READY).weight == 2.5
    assert decision.timeouts == Timeouts(first_token_s=2, between_tokens_s=20, total_s=120)


@pytest.mark.parametrize(
    ("given_facts", "route"),
    [
        (facts(tenant="acme-1", stream=True), "acme-streams"),
        (facts(tenant="acme-1", stream=True, endpoint="generate"), "chat-default"),
        (facts(tenant="the-acme-1", stream=True), "chat-default"),
        (facts(prompt_tokens=8000), "chat-default"),
        (facts(prompt_tokens=8001), "long-prompts"),
        (facts(prompt_tokens=None), "chat-default"),  # nobody could count: not known to be over
        (facts(model="team/big"), "big"),
    ],
)
def test_routes_by_the_facts(given_facts: Facts, route: str) -> None:
    assert decide(policy(), given_facts, ALL_READY).route == route


@pytest.mark.parametrize(
    ("health", "attempts", "rejected"),
    [
        (ALL_READY, ("small", "spare", "large"), ()),
        ({**ALL_READY, **health_of(small=DOWN)}, ("spare", "large"), (("small", "down"),)),
        ({**ALL_READY, **health_of(small=STARTING)}, ("spare", "large", "small"), ()),
        (
            health_of(small=STARTING, spare=STARTING),
            ("small", "spare"),
            (("large", "nobody reports on it"),),
        ),
    ],
)
def test_tries_ready_backends_in_order_then_starting_ones(
    health: Health, attempts: tuple[str, ...], rejected: tuple[tuple[str, str], ...]
) -> None:
    decision = decide(policy(), facts(), health)
    assert decision.attempts == attempts
    assert decision.rejected_candidates == rejected


def test_refuses_when_every_backend_of_the_route_is_down() -> None:
    decision = decide(policy(), facts(), health_of(spare=DOWN))
    assert decision.reject is not None
    assert decision.reject.reason is RejectReason.NO_BACKEND
    assert decision.route == "chat-default"
    assert decision.attempts == ()
    assert len(decision.rejected_candidates) == 3


@pytest.mark.parametrize("written", ["chat", "gpt-4o-mini", "Chat-Latest"])
def test_resolves_names_and_aliases(written: str) -> None:
    assert decide(policy(), facts(model=written), ALL_READY).model == "chat"


@pytest.mark.parametrize(
    "written", ["", "tgi", "dummy", "http://localhost:8080", "https://host/v1/"]
)
def test_takes_the_default_model_for_a_placeholder(written: str) -> None:
    assert decide(policy(), facts(model=written), ALL_READY).model == "chat"


def test_a_model_may_be_named_as_a_placeholder() -> None:
    named = parse(TEXT.replace("team/big: {}", "team/big: {aliases: [tgi]}"), "p")
    assert resolve_model(named, "tgi") == "team/big"


@pytest.mark.parametrize(
    "written",
    [
        "Chat",
        "CHAT",
        "chat ",
        " chat",
        "chat\n",
        "\N{CYRILLIC SMALL LETTER ES}hat",
        "chat-latest",
        "TGI",
        "chat*",
    ],
)
def test_takes_no_name_for_another_that_merely_looks_like_it(written: str) -> None:
    """Case Q-MODEL-BYPASS: case, spaces and look-alike letters make another name."""
    assert reject_reason(facts(model=written)) is RejectReason.UNKNOWN_MODEL


@pytest.mark.parametrize("written", ["team/big", "big-alias"])
def test_judges_the_model_behind_the_name(written: str) -> None:
    """Case Q-MODEL-BYPASS: the model that is authorised is the one that is dispatched."""
    aliased = parse(TEXT.replace("team/big: {}", "team/big: {aliases: [big-alias]}"), "p")
    decision = decide(aliased, facts(plan="free", model=written), ALL_READY)
    assert decision.reject is not None
    assert decision.reject.reason is RejectReason.MODEL_NOT_ALLOWED
    assert decision.attempts == ()


def test_a_placeholder_does_not_open_the_default_model_to_every_plan() -> None:
    default_big = parse(TEXT.replace("\n  model: chat\n", "\n  model: team/big\n"), "p")
    decision = decide(default_big, facts(plan="free", model=""), ALL_READY)
    assert decision.reject is not None
    assert decision.reject.reason is RejectReason.MODEL_NOT_ALLOWED


@pytest.mark.parametrize(
    ("key_models", "allows"),
    [
        (("*",), True),
        (("chat",), True),
        (("team/*", "ch*t"), True),
        (("team/*",), False),
        (("gpt-4o-mini",), False),  # the alias it was asked for by
        (("chatter", "cha", "hat"), False),
        ((), False),
    ],
)
def test_judges_a_key_by_the_model_behind_the_name(
    key_models: tuple[str, ...], allows: bool
) -> None:
    """Case Q-MODEL-BYPASS: patterns are anchored, and an empty list allows nothing."""
    asked = replace(facts(model="gpt-4o-mini"), key_models=key_models)
    decision = decide(policy(), asked, ALL_READY)
    assert (decision.reject is None) is allows
    assert bool(reachable_backends(policy(), asked)) is allows
    assert ("chat" in allowed_models(policy(), "pro", key_models)) is allows
    if decision.reject is not None:
        assert decision.reject.reason is RejectReason.MODEL_NOT_ALLOWED
        assert decision.reject.message.startswith("the key does not allow model 'chat'")


def test_refuses_an_unknown_plan() -> None:
    assert reject_reason(facts(plan="gold")) is RejectReason.UNKNOWN_PLAN


def test_refuses_when_no_route_matches_keeping_the_trace() -> None:
    cut = TEXT.replace(
        'match: {model: "team/*", plan: pro}', "match: {model: team/big, stream: true}"
    )
    decision = decide(parse(cut, "p"), facts(model="team/big"), ALL_READY)
    assert decision.reject is not None
    assert decision.reject.reason is RejectReason.NO_ROUTE
    assert decision.trace[-1] == ("big", "stream")
    assert decision.decision_id.endswith("/!no_route")


@pytest.mark.parametrize(
    ("match", "key"),
    [
        ("{model: team/big, tenant: x}", "model"),
        ("{tenant: acme}", "tenant"),
        ("{plan: free, endpoint: generate}", "plan"),
        ("{endpoint: [completions, generate]}", "endpoint"),
        ("{stream: true, prompt_tokens: {over: 8k}}", "stream"),
        ("{prompt_tokens: {under: 100}}", "prompt_tokens"),
        ("{prompt_tokens: {between: [100, 100]}}", "matched"),
    ],
)
def test_traces_the_first_key_that_does_not_hold(match: str, key: str) -> None:
    text = TEXT.replace("{model: chat, prompt_tokens: {over: 8k}}", match)
    assert decide(parse(text, "p"), facts(), ALL_READY).trace[0] == ("long-prompts", key)


def test_lists_the_models_of_a_plan() -> None:
    assert allowed_models(policy(), "free") == ("chat",)
    assert allowed_models(policy(), "pro") == ("chat", "team/big")
    assert allowed_models(policy(), "gold") == ()


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("team/*", "team/a", True),
        ("team/*", "teamx/a", False),
        ("team/*", "my-team/a", False),
        ("*", "", True),
        ("*", "a\nb", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("a.c", "abc", False),
        ("[a]*", "a", False),
        ("Small*", "small-1", False),
    ],
)
def test_globs_are_anchored_and_only_the_star_is_special(
    pattern: str, text: str, fits: bool
) -> None:
    """Case Q-MODEL-BYPASS: a pattern takes no name that only begins or ends like it."""
    assert glob_matches(pattern, text) is fits


@given(st.text("ab/", max_size=6), st.text("ab/", max_size=6), st.text(max_size=6))
def test_a_glob_takes_whatever_stands_for_its_star(start: str, end: str, middle: str) -> None:
    assert glob_matches(f"{start}*{end}", start + middle + end)


COMPILED = policy()
NAMES = ["chat", "gpt-4o-mini", "team/big", "Chat", "", "tgi", "http://x"]
ANY_FACTS = st.builds(
    Facts,
    tenant=st.one_of(st.sampled_from(["acme-1", "globex"]), st.text()),
    plan=st.one_of(st.sampled_from(["free", "pro"]), st.text()),
    model=st.one_of(st.sampled_from(NAMES), st.text()),
    endpoint=st.one_of(st.sampled_from(["chat", "completions", "generate"]), st.text()),
    stream=st.booleans(),
    prompt_tokens=st.one_of(st.none(), st.integers()),
)
ANY_HEALTH = st.dictionaries(
    st.one_of(st.sampled_from(sorted(COMPILED.backends)), st.text()), st.sampled_from(BackendState)
)


@given(ANY_FACTS, ANY_HEALTH)
def test_decides_on_any_facts_and_only_for_what_is_allowed(
    given_facts: Facts, states: dict[str, BackendState]
) -> None:
    health = health_of(**states)
    decision = decide(COMPILED, given_facts, health)
    assert decision == decide(
        COMPILED, given_facts, {name: health[name] for name in reversed([*health])}
    )
    assert decision.decision_id.startswith(COMPILED.digest)
    assert bool(decision.attempts) is (decision.reject is None)
    if decision.route:
        assert_is_by_the_book(COMPILED, given_facts, health, decision.route)
    if decision.attempts:
        assert decision.model in allowed_models(COMPILED, given_facts.plan)


def assert_is_by_the_book(
    compiled: Policy, given_facts: Facts, health: Health, route_name: str
) -> None:
    decision = decide(compiled, given_facts, health)
    (route,) = [route for route in compiled.routes if route.name == route_name]
    candidates = route.backends
    rejected = tuple(name for name, _ in decision.rejected_candidates)
    assert sorted([*decision.attempts, *rejected]) == sorted(candidates)
    assert all(health[name].state is not DOWN for name in decision.attempts)
    states = [health[name].state for name in decision.attempts]
    assert states == sorted(states, key=[READY, STARTING].index)
    assert all(outcome != "matched" for _, outcome in decision.trace[:-1])
    assert decision.trace[-1] == (route_name, "matched")


def test_reachable_backends_do_not_depend_on_the_length_of_the_prompt() -> None:
    compiled = parse(
        """\
version: 1
backends: {a: {engine: echo}, b: {engine: echo}, c: {engine: echo}, d: {engine: echo}}
models: {m: {}, hidden: {}}
plans: {p: {limits: [], models: [m]}}
routes:
  - {name: long, match: {prompt_tokens: {over: 8k}}, use: a, fallback: [b]}
  - {name: streamed, match: {stream: true}, use: c}
  - {name: rest, use: d, fallback: [b]}
defaults: {model: m}
""",
        "policy.yaml",
    )
    asked = Facts(tenant="t", plan="p", model="m", endpoint="chat", stream=False)
    assert reachable_backends(compiled, asked) == ("a", "b", "d")
    assert reachable_backends(compiled, replace(asked, model="hidden")) == ()
    assert reachable_backends(compiled, replace(asked, plan="nobody's")) == ()


@pytest.mark.parametrize(
    ("headers", "route"),
    [
        ({"x-job": "batch"}, "jobs"),
        ({"x-job": "nightly-7", "x-other": "1"}, "jobs"),
        ({"x-job": "Batch"}, "rest"),
        ({"x-job": ""}, "rest"),
        ({"x-trace": ""}, "traced"),  # it is there, whatever it says
        ({}, "rest"),
    ],
)
def test_a_header_asked_for_has_to_be_there(headers: dict[str, str], route: str) -> None:
    compiled = parse(
        """\
version: 1
backends: {a: {engine: echo}}
models: {m: {}}
plans: {p: {models: [m]}}
routes:
  - {name: jobs, match: {header: {X-Job: [batch, "nightly-*"]}}, use: a}
  - {name: traced, match: {header: {x-trace: "*"}}, use: a}
  - {name: rest, use: a}
""",
        "policy.yaml",
    )
    assert compiled.header_names == {"x-job", "x-trace"}
    asked = facts(plan="p", model="m", headers=headers)
    decision = decide(compiled, asked, health_of(a=READY))
    assert decision.route == route
    assert decision.trace[-1] == (route, "matched")
    assert ("jobs", "header") in decision.trace or route == "jobs"
