"""Answers that are cut in the middle, and gone on with by another backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend
from backends.echo import EchoBackend, EchoOptions
from backends.errors import PromptTooLong
from backends.types import (
    ChoiceSoFar,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    Token,
    Usage,
)
from gateway.resumption import AnswerSoFar
from tests.gateway.serving import CHAT, POLICY, Caller, Plain, chat, echo, gateway_over

THREE = POLICY.replace(
    "second: {engine: echo}", "second: {engine: echo}\n  third: {engine: echo}"
).replace("fallback: [second]", "fallback: [second, third]")
PRICED = "currency: EUR\n" + POLICY.replace(
    "first: {engine: echo}", "first: {engine: echo, price: {input: 1000, output: 10}}"
).replace("second: {engine: echo}", "second: {engine: echo, price: {input: 7, output: 1000}}")
WORDS = "one two three four five six"


class Noting(EchoBackend):
    """An echo that keeps what it was asked."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, EchoOptions(**options))
        self.asked: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        return super().generate(request)


class Elsewhere(Noting):
    """One whose token ids mean something else."""

    @property
    def vocabulary(self) -> str:
        return "another"


class TooSmall(Noting):
    """One that takes on nothing."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        raise PromptTooLong(prompt_tokens=9, max_tokens=9, max_total_tokens=9)
        yield  # an async generator, if one without events


def text_of(answer: Caller, choice: int = 0) -> str:
    choices = [one for event in answer.events() for one in event["choices"]]
    return "".join(one["delta"].get("content") or "" for one in choices if one["index"] == choice)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("cut", [1, 2, 5, 6])
async def test_the_client_has_one_answer_and_each_of_its_tokens_once(
    tmp_path: Path, cut: int, stream: bool
) -> None:
    second = Noting("second")
    backends = {"first": echo("first", fail_after_tokens=cut), "second": second}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=stream, logprobs=True))
        (record,) = await gateway.records()
        assert await gateway.reserved() == 0
        assert await gateway.used("tokens") == 6 + 7

    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        assert len({event["id"] for event in answer.events()}) == 1
        assert text_of(answer) == WORDS
    else:
        (choice,) = answer.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (WORDS, "stop")
        assert "".join(one["token"] for one in choice["logprobs"]["content"]) == WORDS
        assert answer.json()["usage"]["completion_tokens"] == 7
    assert (record.outcome, record.backend, record.num_attempts) == ("complete", "second", 2)
    assert (record.prompt_tokens, record.completion_tokens) == (6, 7)
    (asked,) = second.asked
    assert asked.resume is not None
    assert asked.resume.choices[0].token_ids is not None
    assert len(asked.resume.choices[0].token_ids) == cut


async def test_a_stop_string_is_found_across_the_cut(tmp_path: Path) -> None:
    backends = {"first": echo("first", fail_after_tokens=3), "second": echo("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True, stop=["three four"]))
    assert text_of(answer) == "one two "
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_of_several_choices_each_goes_on_where_it_stopped(tmp_path: Path) -> None:
    second = Noting("second")
    backends = {
        "first": echo("first", fail_after_tokens=11, tokens_per_step=7),
        "second": second,
    }
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True, n=2))
        (record,) = await gateway.records()
    assert [text_of(answer, choice) for choice in range(2)] == [WORDS, WORDS]
    assert record.completion_tokens == 14
    (asked,) = second.asked
    assert asked.resume is not None
    assert [one.finish_reason for one in asked.resume.choices] == [FinishReason.EOS, None]


async def test_an_answer_may_be_cut_more_than_once(tmp_path: Path) -> None:
    backends = {
        "first": echo("first", fail_after_tokens=2),
        "second": echo("second", fail_after_tokens=1),
        "third": echo("third"),
    }
    async with gateway_over(tmp_path, backends, policy=THREE) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True))
        (record,) = await gateway.records()
    assert text_of(answer) == WORDS
    assert (record.backend, record.num_attempts, record.completion_tokens) == ("third", 3, 7)


@pytest.mark.parametrize(
    "second",
    [Plain(echo("second")), echo("second", fail_before=True), TooSmall("second")],
    ids=["cannot", "is down", "refuses"],
)
async def test_one_that_does_not_go_on_is_passed_over(tmp_path: Path, second: Backend) -> None:
    backends = {
        "first": echo("first", fail_after_tokens=2),
        "second": second,
        "third": echo("third"),
    }
    async with gateway_over(tmp_path, backends, policy=THREE) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True))
    assert text_of(answer) == WORDS


@pytest.mark.parametrize(
    "second",
    [Plain(echo("second")), echo("second", fail_before=True), TooSmall("second")],
    ids=["cannot", "is down", "refuses"],
)
async def test_if_nobody_goes_on_the_client_is_told_what_cut_its_answer(
    tmp_path: Path, second: Backend
) -> None:
    backends = {"first": echo("first", fail_after_tokens=2), "second": second}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True))
        (record,) = await gateway.records()
        assert await gateway.used("tokens") == 6 + 2
    *_, last = answer.events()
    assert last["error"]["code"] == "upstream_error"
    assert "told to fail after 2 tokens" in last["error"]["message"]
    assert "[DONE]" not in answer.text
    assert (record.outcome, record.completion_tokens) == ("error", 2)


async def test_a_stall_in_the_middle_is_a_cut(tmp_path: Path) -> None:
    """R-STALL-MIDSTREAM: unless somebody goes on."""
    policy = POLICY.replace("between_tokens: 2s", "between_tokens: 50ms")
    first = echo("first", token_delay_s=30.0)
    async with gateway_over(
        tmp_path, {"first": first, "second": echo("second")}, policy=policy
    ) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True))
    assert text_of(answer) == WORDS
    assert len(first.aborted) == 1


async def test_where_ids_mean_something_else_it_goes_on_from_the_text(tmp_path: Path) -> None:
    second = Elsewhere("second")
    backends = {"first": echo("first", fail_after_tokens=2), "second": second}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS, stream=True))
    assert text_of(answer) == WORDS
    (asked,) = second.asked
    assert asked.resume is not None
    assert asked.resume.vocabulary == "echo"


async def test_each_part_costs_what_its_backend_costs(tmp_path: Path) -> None:
    backends = {"first": echo("first", fail_after_tokens=2), "second": echo("second")}
    async with gateway_over(tmp_path, backends, policy=PRICED) as gateway:
        await gateway.call(CHAT, chat(WORDS, stream=True))
        (record,) = await gateway.records()
    assert record.cost_micros == 6 * 1000 + 2 * 10 + 5 * 1000


async def test_an_allowance_is_charged_with_what_its_backend_computed(tmp_path: Path) -> None:
    """The second has the prompt and the beginning to read, and gives the rest."""
    policy = POLICY.replace(
        "  free: {", "  soon: {input_tokens: 9k/day}\n  late: {tokens: 9k/day}\n  free: {"
    )
    policy = policy.replace("first: {engine: echo}", "first: {engine: echo, limits: [soon]}")
    policy = policy.replace("second: {engine: echo}", "second: {engine: echo, limits: [late]}")
    backends = {"first": echo("first", fail_after_tokens=2), "second": echo("second")}
    async with gateway_over(tmp_path, backends, policy=policy) as gateway:
        await gateway.call(CHAT, chat(WORDS, stream=True))
        used = {one.counter.split("/")[0]: one.used for one in await gateway.store.usage()}
    assert used["backend:first"] == 6
    assert used["backend:second"] == 6 + 2 + 5


async def test_what_was_asked_of_the_prompt_is_not_told_twice(tmp_path: Path) -> None:
    second = Noting("second")
    backends = {"first": echo("first", fail_after_tokens=2), "second": second}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(
            "/generate", {"inputs": WORDS, "parameters": {"decoder_input_details": True}}
        )
    assert (answer.status, answer.json()["error_type"]) == (424, "generation")
    assert second.asked == []


def request(**fields: Any) -> GenerationRequest:
    fields = {"sampling": SamplingParams()} | fields
    return GenerationRequest(request_id="r", model="m", prompts=(TextPrompt(text=WORDS),), **fields)


def test_ids_of_two_vocabularies_are_not_mixed() -> None:
    so_far = AnswerSoFar(request())
    so_far.begin(echo("first"))
    so_far.add(Token(index=0, text="one", token_id=1))
    so_far.begin(Elsewhere("second"))
    so_far.add(Token(index=0, text=" two", token_id=2))

    rest = so_far.rest_for(echo("third"))

    assert rest is not None
    assert rest.resume is not None
    assert rest.resume.choices == (ChoiceSoFar(text="one two", token_ids=None),)
    assert rest.resume.vocabulary == ""


def test_a_token_without_an_id_leaves_the_text() -> None:
    so_far = AnswerSoFar(request())
    so_far.begin(echo("first"))
    so_far.add(Token(index=0, text="one"))

    rest = so_far.rest_for(echo("second"))

    assert rest is not None
    assert rest.resume is not None
    assert rest.resume.choices == (ChoiceSoFar(text="one", token_ids=None),)


def test_before_anything_has_come_the_request_is_as_it_was() -> None:
    whole = request()
    so_far = AnswerSoFar(whole)
    assert so_far.rest_for(Plain(echo("any"))) is whole


def test_a_resumption_has_an_entry_for_each_choice() -> None:
    so_far = AnswerSoFar(request(n=2))
    so_far.add(Token(index=1, text="one", token_id=1))
    so_far.add(Finished(reasons=(), usage=Usage(prompt_tokens=1, completion_tokens=1)))
    rest = so_far.rest_for(echo("any"))
    assert rest is not None
    with pytest.raises(ValueError, match="an entry for each choice"):
        replace(rest, n=3)


async def test_a_failure_before_anything_is_no_cut(tmp_path: Path) -> None:
    backends = {"first": echo("first", fail_before=True), "second": TooSmall("second")}
    async with gateway_over(tmp_path, backends) as gateway:
        answer = await gateway.call(CHAT, chat(WORDS))
    assert answer.json()["error"]["code"] == "context_length_exceeded"
