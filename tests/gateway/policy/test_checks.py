from __future__ import annotations

import pytest

from tests.gateway.policy.examples import TEXT, problems_after, problems_in


def with_routes(*matches: str) -> str:
    """The example policy with these matches as its routes r0, r1, … and a last one for all."""
    head, _, tail = TEXT.partition("routes:\n")
    _, _, tail = tail.partition("defaults:")
    routes = "".join(
        f"  - {{name: r{index}, match: {match}, use: small}}\n"
        for index, match in enumerate(matches)
    )
    return f"{head}routes:\n{routes}  - {{name: last, use: small}}\ndefaults:{tail}"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{model: chat}", "{model: chat}"),
        ("{model: [chat, team/big]}", "{plan: pro}"),  # all the models there are
        ('{model: "*"}', "{stream: true}"),
        ('{tenant: "a*"}', "{tenant: abc}"),
        ('{tenant: "a*"}', '{tenant: "ab*c", model: chat}'),
        ('{tenant: ["x", "a*"]}', '{tenant: ["x", "ab"]}'),
        ("{endpoint: [chat, generate]}", "{endpoint: chat}"),
        ("{stream: true}", "{stream: true, plan: pro}"),
        ("{header: {x-job: batch}}", "{header: {X-Job: batch, x-other: a}}"),
        ('{header: {x-job: "*"}}', "{header: {x-job: batch}}"),
        ("{prompt_tokens: {over: 1k}}", "{prompt_tokens: {over: 2k}}"),
        ("{prompt_tokens: {under: 9k}}", "{prompt_tokens: {between: [1k, 8k]}}"),
    ],
)
def test_finds_a_route_that_an_earlier_one_shadows(earlier: str, later: str) -> None:
    found = problems_in(with_routes(earlier, later))
    (problem,) = [each for each in found if "reaches route 'r1': 'r0'" in each.message]
    assert problem.code == "unreachable-route"
    assert problem.also is not None


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{model: chat}", "{model: team/big}"),
        ('{model: "team/*"}', '{model: "*"}'),
        ("{tenant: abc}", '{tenant: "a*"}'),
        ('{tenant: "a*"}', "{stream: true}"),
        ("{endpoint: chat}", "{endpoint: [chat, generate]}"),
        ("{endpoint: chat}", "{plan: pro}"),
        ("{stream: true}", "{stream: false}"),
        ("{stream: true}", "{plan: pro}"),
        ('{header: {x-job: "*"}}', "{plan: pro}"),  # not every request has it
        ("{header: {x-job: batch}}", '{header: {x-job: "*"}}'),
        ("{header: {x-job: batch}}", "{header: {x-other: batch}}"),
        ("{header: {x-job: a, x-other: b}}", "{header: {x-job: a}}"),
        ("{prompt_tokens: {over: 2k}}", "{prompt_tokens: {over: 1k}}"),
        ("{prompt_tokens: {under: 2k}}", "{prompt_tokens: {over: 1k}}"),
        ("{prompt_tokens: {under: 2k}}", "{prompt_tokens: {under: 3k}}"),
        ("{prompt_tokens: {between: [1, 1M]}}", "{plan: pro}"),  # not every prompt is counted
    ],
)
def test_lets_pass_a_route_that_some_request_reaches(earlier: str, later: str) -> None:
    found = problems_in(with_routes(earlier, later))
    assert not [each for each in found if "reaches route 'r1'" in each.message]


def test_finds_a_model_that_a_plan_allows_and_no_route_serves() -> None:
    (problem,) = problems_after("models: [chat]", "models: [chat, team/big]")
    assert problem.code == "no-route-for-model"
    assert problem.message == "plan 'free' allows model 'team/big', which no route serves"
    assert problem.span.line == 13


def test_finds_a_limit_that_no_request_fits_into() -> None:
    (problem,) = problems_after("40k/min", "255/min")
    assert problem.code == "limit-below-estimate"
    assert problems_after("40k/min", "256/min") == ()


def test_asks_for_no_price_where_a_plan_under_the_limit_may_not_go() -> None:
    text = TEXT.replace("version: 1\n", "version: 1\ncurrency: EUR\n")
    text = text.replace("  paid: {requests: 10/s}", "  paid: {cost: 10/day}")
    text = text.replace('limits: [paid], models: "*"', "limits: [paid], models: [team/big]")
    text = text.replace("./large.gguf}", "./large.gguf, price: {input: 1, output: 1}}")
    assert problems_in(text) == ()


def test_finds_a_total_deadline_before_the_first_token_s() -> None:
    (problem,) = problems_after("{first_token: 2s}", "{first_token: 2s, total: 2s}")
    assert problem.code == "deadline-too-short"
    assert "'chat-default' waits 2s" in problem.message


PRICED = TEXT.replace("echo, delay_ms: 5", "echo, price: {input: 1, output: 2}")


def test_finds_a_limit_of_output_tokens_that_no_request_fits_into() -> None:
    (problem,) = problems_after("tokens: 40k/min", "output_tokens: 255/min")
    assert problem.code == "limit-below-estimate"


def test_finds_backends_without_a_price_under_a_limit_of_money() -> None:
    text = PRICED.replace("requests: 10/s", "cost: 20/month").replace(
        "version: 1", "version: 1\ncurrency: EUR"
    )
    found = problems_in(text)
    assert {problem.code for problem in found} == {"price-missing"}
    assert sorted(problem.message.split("'")[3] for problem in found) == ["large", "small"]


def test_a_backend_behind_a_route_that_takes_all_needs_no_price() -> None:
    """`chat-default` takes every request for `chat`; what comes after it is for other models."""
    text = PRICED.replace("version: 1", "version: 1\ncurrency: EUR").replace(
        "tokens: 40k/min", "cost: 20/month"
    )
    ours = text.replace("model: smollm2-135m-instruct}", "model: m, price: {input: 1, output: 1}}")
    (problem,) = problems_in(ours)
    assert problem.message.split("'")[3] == "large"
    assert (
        problems_in(
            ours.replace("fallback: [spare, large]", "fallback: [spare]").replace(
                "    use: large\n    fallback: [small]", "    use: small"
            )
        )
        == ()
    )


def test_a_limit_of_money_needs_a_currency() -> None:
    found = problems_after("requests: 10/s", "cost: 20/month")
    assert [(one.code, one.write) for one in found] == [("missing-key", "currency: USD")]
    assert "limit 'paid' has an amount of money" in found[0].message


def test_finds_a_limit_that_counts_what_its_place_does_not_have() -> None:
    (problem,) = problems_after("requests: 10/s", "requests: 10/s, per: route")
    assert problem.code == "no-effect"
    assert "which plan 'pro' cannot do" in problem.message


def test_limits_may_be_attached_to_routes_and_backends() -> None:
    text = TEXT.replace("echo, delay_ms: 5", "echo, limits: [paid]").replace(
        "    use: small\n    fallback: [spare, large]",
        "    use: small\n    limits: [free]\n    fallback: [spare, large]",
    )
    assert problems_in(text) == ()
    assert [
        one.code for one in problems_in(text.replace("echo, limits: [paid", "echo, limits: [piad"))
    ] == ["unknown-ref"]
    per_key = text.replace("paid: {requests: 10/s", "paid: {requests: 10/s, per: key")
    (problem,) = problems_in(per_key)
    assert (problem.code, problem.span.line) == ("no-effect", 4)
