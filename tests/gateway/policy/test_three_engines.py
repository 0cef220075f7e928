"""`policies/three-engines.yaml`: where each kind of request goes, and what else may happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from backends.base import BackendState
from backends.registry import host_command
from gateway.app import backend_spec
from gateway.config import Settings
from gateway.policy.decide import decide
from gateway.policy.load import load
from gateway.policy.match import Facts
from tests.gateway.policy.examples import facts, health_of

ROOT = Path(__file__).parents[3]
POLICY = load(ROOT / "policies/three-engines.yaml")
ENGINES = ("native", "batcher", "static")
ALL_READY = health_of(**dict.fromkeys(ENGINES, BackendState.READY))
PLANS = ("demo", "pro", "bulk")


@pytest.mark.parametrize(
    ("given_facts", "route", "attempts"),
    [
        (facts(plan="demo"), "default", ["native", "batcher"]),
        (facts(plan="pro", stream=True), "default", ["native", "batcher"]),
        (facts(plan="bulk"), "bulk", ["batcher", "static"]),
        (facts(plan="demo", headers={"x-job": "nightly"}), "jobs", ["static", "batcher"]),
        (facts(plan="bulk", headers={"x-job": ""}), "jobs", ["static", "batcher"]),
        (facts(plan="bulk", prompt_tokens=1000), "bulk", ["batcher", "static"]),
        (facts(plan="bulk", prompt_tokens=1001), "long-prompts", ["native"]),
        (facts(plan="demo", model="gpt-4o-mini"), "default", ["native", "batcher"]),
        (facts(plan="demo", model="tgi", endpoint="generate"), "default", ["native", "batcher"]),
    ],
)
def test_goes_where_plan_prompt_and_header_say(
    given_facts: Facts, route: str, attempts: list[str]
) -> None:
    decision = decide(POLICY, given_facts, ALL_READY)
    assert (decision.route, list(decision.attempts)) == (route, attempts)
    assert decision.model == "chat"


@pytest.mark.parametrize("down", ENGINES)
def test_goes_on_with_another_engine_when_its_own_is_down(down: str) -> None:
    health = {**ALL_READY, **health_of(**{down: BackendState.DOWN})}
    jobs = decide(POLICY, facts(plan="demo", headers={"x-job": "1"}), health)
    assert jobs.attempts[0] == ("batcher" if down == "static" else "static")
    bulk = decide(POLICY, facts(plan="bulk"), health)
    assert bulk.attempts[0] == ("static" if down == "batcher" else "batcher")
    rest = decide(POLICY, facts(plan="pro"), health)
    assert rest.attempts[0] == ("batcher" if down == "native" else "native")


@given(
    plan=st.sampled_from(PLANS),
    stream=st.booleans(),
    prompt_tokens=st.none() | st.integers(1, 4000),
    headers=st.dictionaries(st.sampled_from(["x-job", "x-other"]), st.text(max_size=5)),
)
def test_every_request_of_every_plan_finds_an_engine_and_a_long_prompt_never_pauses_others(
    plan: str, stream: bool, prompt_tokens: int | None, headers: dict[str, str]
) -> None:
    asked = facts(plan=plan, stream=stream, prompt_tokens=prompt_tokens, headers=headers)
    decision = decide(POLICY, asked, ALL_READY)
    assert decision.attempts
    if (prompt_tokens or 0) > 1000 and "x-job" not in headers:
        assert decision.attempts == ("native",)


def test_plans_say_who_goes_first() -> None:
    priorities = [decide(POLICY, facts(plan=plan), ALL_READY).priority for plan in PLANS]
    assert priorities == [0, 1, -1]


@pytest.mark.weights
@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_takes_its_options(name: str, tmp_path: Path) -> None:
    settings = Settings(home=ROOT / ".turnout", run_dir=tmp_path)
    command = host_command(backend_spec(POLICY.backends[name], settings, tmp_path))
    assert command is not None
    assert f"--engine={POLICY.backends[name].engine}" in command
