"""Where a request goes, by its prompt's length and its headers, and what is made of a guess."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.serving import CHAT, POLICY, Plain, chat, echo, gateway_over


async def test_a_route_by_prompt_length_is_decided_by_the_exact_count(tmp_path: Path) -> None:
    policy = POLICY.replace(
        "  - {name: all, use: first, fallback: [second]}",
        "  - {name: long, match: {prompt_tokens: {over: 3}}, use: second}\n"
        "  - {name: short, match: {prompt_tokens: {under: 4}}, use: first}",
    )
    backends = {"first": echo("first"), "second": echo("second")}
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        short = await gateway.call(CHAT, chat("one two three"))
        long = await gateway.call(CHAT, chat("one two three four"))
        assert short.response_headers["x-turnout-backend"] == "first"
        assert long.response_headers["x-turnout-backend"] == "second"


async def test_a_prompt_beyond_the_context_is_not_blamed_on_a_limit(tmp_path: Path) -> None:
    backends = {"first": echo("first", max_model_len=50), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat("word " * 5000))
        assert answer.status == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_a_route_may_ask_for_a_header(tmp_path: Path) -> None:
    routes = '- {name: jobs, match: {header: {x-job: "nightly, *"}}, use: second}\n  - {name: all'
    backends = {"first": echo("first"), "second": echo("second")}
    policy = POLICY.replace("- {name: all", routes)
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        plain = await gateway.call(CHAT, chat())
        job = await gateway.call(CHAT, chat(), headers={"x-job": "nightly, 7"})
    assert plain.response_headers["x-turnout-backend"] == "first"
    assert job.response_headers["x-turnout-backend"] == "second"


async def test_a_guess_at_a_prompts_length_refuses_nobody(tmp_path: Path) -> None:
    """A backend without a tokenizer says itself what does not fit."""
    backends = {name: Plain(echo(name, max_model_len=8)) for name in ("first", "second")}
    async with gateway_over(tmp_path, backends) as gateway:
        fits = await gateway.call(CHAT, chat("a" * 40))
        long = await gateway.call(CHAT, chat("a " * 9))
    assert fits.status == 200
    assert long.status == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
