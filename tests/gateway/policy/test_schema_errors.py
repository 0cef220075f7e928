from __future__ import annotations

import pytest

from tests.gateway.policy.examples import TEXT, problems_after, problems_in


@pytest.mark.parametrize(
    ("old", "new", "code", "message", "write"),
    [
        ("version: 1", "version: 2", "bad-value", "version: 2 is not 1", ""),
        ("engine: echo", "engine: ray", "not-supported-yet", "engine 'ray'", ""),
        ("engine: echo", "engine: eco", "bad-value", "eco is not 'native', ", ""),
        ("engine: echo", "engine: fastchat", "missing-key", "'fastchat' needs a model",
         "model: vicuna-7b-v1.5"),
        ("delay_ms: 5", "delay_ms: [5]", "bad-value", "delay_ms: an engine's option", ""),
        (", model: ./large.gguf", "", "missing-key", "needs a model", "model: smollm2-135m-inst"),
        ("chat: {aliases", "'a b': {}\n  chat: {aliases", "bad-value", "'a b' is not a model", ""),
        ("{aliases: [", "{aliases: ['*', ", "bad-value", "'*' is not a model name", ""),
        ("  free: {req", "  'f r': {requests: 1/s}\n  free: {req", "bad-value", "'f r' is not", ""),
        ("requests: 60/min", "requests: 60", "missing-unit", "60 does not", "requests: 60/min"),
        ("tokens: 40k/min", "tokens: 40k/m", "bad-unit", "'m' is not", "tokens: 40k/min"),
        ("requests: 10/s", "reset: '00:00', requests: 10/s", "no-effect", "reset: has no", ""),
        ("requests: 10/s", "warn_at: 80%, requests: 10/s", "no-effect", "warn_at: has no", ""),
        ("requests: 10/s", "requests: 9/day, reset: '0:00'", "bad-value",
         "0:00 is not a time", 'reset: "00:00 Europe/Berlin"'),
        ("requests: 10/s", "requests: 9/day, warn_at: 80", "missing-unit",
         "80 has no unit", "warn_at: 80%"),
        ("requests: 10/s", "requests: 10/s, per: user", "bad-value", "user is not 'tenant'", ""),
        ("requests: 10/s", "requests: 10/s, on_store_error: ignore", "bad-value", "not 'deny'", ""),
        ("{requests: 10/s}", "{}", "missing-key", "limits nothing", "requests: 60/min"),
        ("priority: low", "priority: hgih", "bad-value", "hgih is not 'low', 'normal'", ""),
        ("weight: 2.5", "weight: 0", "bad-value", "plans.pro.weight: 0 is not a number from 0.01 to"
         " 100", "weight: 1"),
        ("weight: 2.5", "weight: heavy", "bad-value", "heavy is not a number", "weight: 1"),
        ("models: [chat], ", "", "missing-key", "plans.free has no 'models'", 'models: "*"'),
        ("models: [chat]", "models: []", "bad-value", "must not be empty", 'models: "*"'),
        ("use: spare", "split: {small: 9, spare: 90}", "split-sum", "add up to 99, not to 100",
         "split: {small: 9, spare: 91}"),
        ("use: spare", "split: {small: 99, spare: 9}", "split-sum", "add up to 108",
         "split: {small: 99, spare: 1}"),
        ("use: spare", "split: {small: 101, spare: 9}", "bad-value", "101 is not a", "small: 10"),
        ("use: spare", "split: {}", "split-sum", "add up to 0", "split: {a: 90, b: 10}"),
        ("use: spare", "pool: []", "bad-value", "must not be empty", "pool: [a, b]"),
        ("use: spare", "pool: [small, large]\n    balance: best", "bad-value", "best is not", ""),
        ("use: spare", "use: spare\n    pool: [small]", "bad-value", "takes one of use", ""),
        ("use: spare", "use: spare\n    balance: cost", "no-effect", "balance: has no effect", ""),
        ("use: spare", "use: spare\n    affinity: session", "no-effect", "affinity: has no", ""),
        ("use: spare", "use: spare\n    affinity: user", "bad-value", "user is not 'session'", ""),
        ("use: spare", "use: spare\n    fail_over_on: [500]", "bad-value", "500 is not", ""),
        ("    use: small\n", "    use: small\n    fail_over_on: []\n", "no-effect",
         "fallback: has no effect", ""),
        ("use: spare", "use: spare\n    retry: 3", "bad-value", "3 is not a map",
         "retry: {attempts: 2, budget: 10%}"),
        ("use: spare", "use: spare\n    retry: {attempts: 99}", "bad-value", "at most 10",
         "retry: {attempts: 2}"),
        ("use: spare", "use: spare\n    retry: {budget: 10}", "missing-unit", "10 has no unit",
         "budget: 10%"),
        ("use: spare", "use: spare\n    priority: urgent", "bad-value", "urgent is not 'low'", ""),
        ("delay_ms: 5", "breaker: {failures: 0}", "bad-value", "0 is not a whole number", ""),
        ("delay_ms: 5", "breaker: {cooldown: 10}", "missing-unit", "10 has no", "cooldown: 10s"),
        ("stream: true", "time: {from: '22:00'}", "missing-key", "has no 'to'", "to: "),
        ("stream: true", "time: {}", "missing-key", "asks nothing", 'from: "22:00"'),
        ("stream: true", "time: {from: '25:00', to: '6:00'}", "bad-value", "25:00 is not a time",
         'from: "06:30"'),
        ("stream: true", "time: {from: '06:00', to: '06:00'}", "no-effect", "begins and", "time"),
        ("stream: true", "time: {days: [sunday]}", "bad-value", "sunday is not a day", ""),
        ("stream: true", "time: {days: sat, zone: Europe/Berlim}", "bad-value", "no time zone", ""),
        ("stream: true", "max_tokens: {under: 0}", "bad-value", "max_tokens.under: 0 is", ""),
        ("stream: true", "tags: {team: 7}", "bad-value", "tags.team: 7 is not text", 'team: "7"'),
        ("stream: true", "tools: true", "not-supported-yet", "match.tools: not", ""),
        ("use: spare", "use: 7", "bad-value", "use: 7 is not text", 'use: "7"'),
        ("use: spare", "useful: spare", "unknown-key", "'useful' is not a key of", "use: spare"),
        ("    use: spare\n", "", "missing-key", "leads nowhere", "use: <a backend's name>"),
        ("stream: true", "stream: yes", "bad-value", "yes is not true or false", "stream: true"),
        ("stream: true", "stream: maybe", "bad-value", "maybe is not", "stream: true"),
        ('tenant: "acme-*"', "tenant: 12", "bad-value", "match.tenant: 12", 'tenant: "12"'),
        ('tenant: "acme-*"', "tenant: {nott: x}", "unknown-key", "'nott' is not", "not: x"),
        ('tenant: "acme-*"', "tenant: {}", "bad-value", "takes a name, a list", ""),
        ("stream: true", "header: {x-job: 7}", "bad-value", "x-job: 7 is not text", 'x-job: "7"'),
        ("stream: true", "header: x-job", "bad-value", "x-job is not a map", "header: {x"),
        ("stream: true", "header: {'x job': a}", "bad-value", "'x job' is not a header's", ""),
        ("stream: true", "header: {Cookie: a}", "bad-value", "'Cookie' holds a secret", ""),
        ("stream: true", "header: {x-job: []}", "bad-value", "must not be empty", ""),
        ("completions]", "embed]", "bad-value", "endpoint[1]: embed is not 'chat'", ""),
        ("prompt_tokens: {over: 8k}", "prompt_tokens: 8k", "bad-value", "8k is not a map",
         "prompt_tokens: {over: 8k}"),
        ("{over: 8k}", "{over: 8k, under: 9k}", "bad-value", "exactly one of", "prompt_tokens: {b"),
        ("{over: 8k}", "{over: 8K}", "bad-unit", "match.prompt_tokens.over: 'K'", "over: 8k"),
        ("{over: 8k}", "{between: 8k}", "bad-value", "takes two counts", "between: [1k, 8k]"),
        ("{over: 8k}", "{between: [8k, 1k]}", "bad-value", "more than", "between: [1000, 8000]"),
        ("[spare, large]", "spare", "bad-value", "spare is not a list", "fallback: [spare]"),
        ("[spare, large]", "[{to: spare}]", "missing-key", "fallback[0] has no 'use'", "use: <a"),
        ("[spare, large]", "[{use: spare, when: {plam: pro}}]", "unknown-key", "'plam' is not",
         "plan: pro"),
        ("first_token: 2s", "first_token: 30", "missing-unit", "30 has no", "first_token: 30s"),
        ("first_token: 2s", "connect: 2s", "not-supported-yet", "timeout.connect", ""),
        ("estimate_output: 256", "estimate_output: x", "bad-value", "x is not a count", ""),
        ("content: off", "content: on", "not-supported-yet", "capturing", "content: off"),
        ("content: off", "content: true", "not-supported-yet", "capturing", "content: off"),
        ("content: off", "content: of", "bad-value", "of is not 'off'", ""),
        ("telemetry:", "include: [x]\ntelemetry:", "unknown-ref", "no file fits 'x'", ""),
        ("telemetry:", "tenants: {}\ntelemetry:", "unknown-key", "'tenants' is not a key of the",
         ""),
        ("routes:", "rutes:", "missing-key", "the policy has no 'routes'", "routes: [{name"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_and_what_to_write(
    old: str, new: str, code: str, message: str, write: str
) -> None:
    found = [problem for problem in problems_after(old, new) if message in problem.message]
    assert [problem.code for problem in found] == [code]
    assert found[0].write.startswith(write)
    assert bool(found[0].write) is bool(write)


def test_suggests_the_nearest_value() -> None:
    (problem,) = problems_after("priority: low", "priority: hgih")
    assert problem.hint == "did you mean 'high'?"


def test_lists_the_keys_when_none_is_near() -> None:
    (problem,) = problems_after("telemetry:", "zzz: 1\ntelemetry:")
    assert problem.hint.startswith("the keys are version, backends, models, limits")


def test_underlines_the_value_or_the_key_that_is_at_fault() -> None:
    (bad_unit,) = problems_after("tokens: 40k/min", "tokens: 40k/m")
    assert (bad_unit.span.line, bad_unit.span.column, bad_unit.span.width) == (10, 36, 5)
    not_yet = problems_after("use: spare", "use: spare\n    queue: session")[0]
    assert (not_yet.span.line, not_yet.span.column, not_yet.span.width) == (23, 5, 5)


@pytest.mark.parametrize("text", ["just words", "[1, 2]", "42", "null"])
def test_refuses_a_file_that_is_no_map(text: str) -> None:
    (problem,) = problems_in(text)
    assert "the policy: " in problem.message
    assert "is not a map" in problem.message


def test_says_what_an_empty_entry_looks_like() -> None:
    (problem,) = problems_after("team/big: {}", "team/big:")
    assert problem.write == "team/big: {}"


def test_every_key_of_the_language_that_is_not_built_yet_is_refused_by_name() -> None:
    later = {
        "shadow": "    use: spare",
        "queue": "    use: spare",
    }
    for key, before in later.items():
        indent = before[: len(before) - len(before.lstrip())]
        problems = problems_in(TEXT.replace(before, f"{indent}{key}: x\n{before}", 1))
        assert [problem.code for problem in problems] == ["not-supported-yet"], key
        assert key in problems[0].message
