from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from gateway.policy.compile import DEFAULT_TIMEOUTS
from gateway.policy.load import load, parse
from gateway.policy.match import EVERYTHING, Match, Names, Range
from gateway.policy.model import Limit, Rate, Timeouts
from gateway.policy.problems import PolicyError
from tests.gateway.policy.examples import TEXT, error_of, policy, problems_after, problems_in

POLICIES = Path(__file__).parents[3] / "policies"


def test_compiles_backends_with_their_options() -> None:
    backends = policy().backends
    assert backends["small"].model == "smollm2-135m-instruct"
    assert backends["spare"].engine == "echo"
    assert backends["spare"].options == {"delay_ms": 5}


def test_compiles_plans_with_their_limits_resolved() -> None:
    free = policy().plans["free"]
    limit = Limit(name="free", requests=Rate(60, 60), tokens=Rate(40_000, 60), concurrent=4)
    assert free.limits == (limit,)
    assert (free.models, free.priority, free.weight) == (("chat",), -1, 1.0)
    pro = policy().plans["pro"]
    assert (pro.models, pro.priority, pro.weight) == (("*",), 1, 2.5)


def test_compiles_matches_with_inclusive_bounds() -> None:
    long_prompts, acme, *_ = policy().routes
    assert long_prompts.match == Match(models=Names(("chat",)), prompt_tokens=Range(8001, None))
    assert acme.match.tenants == Names(("acme-*",))
    assert acme.match.endpoints == Names(("chat", "completions"))
    assert acme.match.stream is True


@pytest.mark.parametrize(
    ("written", "bounds"),
    [("{under: 1k}", (None, 999)), ("{between: [1k, 8k]}", (1000, 8000))],
)
def test_compiles_ranges_of_prompt_tokens(
    written: str, bounds: tuple[int | None, int | None]
) -> None:
    match = parse(TEXT.replace("{over: 8k}", written), "p").routes[0].match
    assert match.prompt_tokens == bounds


def test_a_route_takes_the_timeouts_it_does_not_say_from_the_defaults() -> None:
    routes = {route.name: route.timeouts for route in policy().routes}
    assert routes["chat-default"] == Timeouts(first_token_s=2, between_tokens_s=20, total_s=120)
    assert routes["big"] == Timeouts(first_token_s=0.5, between_tokens_s=20, total_s=120)


def test_fills_what_a_minimal_policy_leaves_out() -> None:
    minimal = parse(
        "version: 1\nbackends: {b: {engine: echo}}\nmodels: {m: {}}\n"
        'plans: {p: {models: "*"}}\nroutes: [{name: r, use: b}]\n',
        "minimal.yaml",
    )
    assert minimal.default_model == "m"
    assert minimal.routes[0].timeouts == DEFAULT_TIMEOUTS
    assert minimal.routes[0].match == EVERYTHING
    assert minimal.plans["p"].limits == ()
    assert minimal.estimate_output_tokens == 512


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert load(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert load(path).routes == policy().routes


@pytest.mark.parametrize("name", ["default.yaml", "echo.yaml", "fastchat.yaml", "routing.yaml"])
def test_the_policies_that_ship_are_good(name: str) -> None:
    shipped = load(POLICIES / name)
    assert shipped.default_model in shipped.models
    assert shipped.plans["demo"].limits


def test_the_echo_policy_needs_no_model() -> None:
    engines = {backend.engine for backend in load(POLICIES / "echo.yaml").backends.values()}
    assert engines == {"echo"}


def test_a_missing_file_is_a_policy_error_naming_it(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"nowhere\.yaml:1:1 .*cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_a_file_that_is_not_utf8_is_a_policy_error(tmp_path: Path) -> None:
    path = tmp_path / "latin1.yaml"
    path.write_bytes(b"version: 1 # caf\xe9")
    with pytest.raises(PolicyError, match="not UTF-8: byte 16 is 0xe9"):
        load(path)


def test_shows_all_problems_of_all_kinds_at_once() -> None:
    text = TEXT.replace("engine: echo", "engine: ecco").replace("use: large", "use: largo")
    text = text.replace("requests: 60/min", "requests: 60").replace("telemetry:", "version: 1\nx:")
    codes = {problem.code for problem in problems_in(text)}
    assert codes == {"bad-value", "unknown-ref", "missing-unit", "duplicate-key", "unknown-key"}


def test_shows_an_unknown_key_as_an_operator_would_want_it() -> None:
    text = TEXT.replace("fallback: [spare, large]", "fallbacks: [spare, large]")
    with pytest.raises(PolicyError) as caught:
        parse(text, "policy.yaml")
    assert str(caught.value).splitlines() == [
        "policy.yaml:26:5  error[unknown-key]  "
        "'fallbacks' is not a key of routes[2] (chat-default)",
        "   26 |     fallbacks: [spare, large]",
        "      |     ^^^^^^^^^ did you mean 'fallback'?",
        "  write: fallback: [spare, large]",
    ]


def test_asks_for_a_default_model_when_there_are_several() -> None:
    (problem,) = problems_after("  model: chat\n", "")
    assert (problem.code, problem.write) == ("missing-key", "defaults: {model: chat}")


@given(st.data())
@settings(max_examples=200)
def test_any_damaged_policy_compiles_or_is_refused_with_places(data: st.DataObject) -> None:
    """Case R-RELOAD-BAD: a bad edit or a half-written file is a `PolicyError`, nothing else."""
    start = data.draw(st.integers(0, len(TEXT)))
    stop = data.draw(st.integers(start, min(len(TEXT), start + 40)))
    noise = st.text("abm:-*&!{}[]<>#'\"\n 0/.k%@\\\t", max_size=8)
    text = TEXT[:start] + data.draw(noise) + TEXT[stop:]
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    error = error_of(text)
    if error is not None:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert problem.span.line >= 1
            assert problem.span.column >= 1
            assert f"policy.yaml:{problem.span.line}:{problem.span.column}  error" in str(error)
