"""Whose a request is, and how long it has: what of that reaches the engine and the answer."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from backends.base import Backend
from backends.errors import (
    BackendOverloaded,
    DeadlineExceeded,
)
from backends.local import (
    cache_salt,
)
from backends.types import (
    ChatPrompt,
    FinishReason,
    GenerationRequest,
    Message,
    SamplingParams,
    Usage,
)
from tests.backends.counting_engine import journal_at
from tests.backends.reciting import (
    Reciter,
    request,
    run,
    text_of,
    until_idle,
)


async def cached_tokens(backend: Backend, asked: GenerationRequest) -> int:
    _, finished = await run(backend, asked)
    return finished.usage.cached_tokens


async def test_cached_tokens_count_once_per_prompt(reciter: Reciter) -> None:
    """Three children of two prompts; the first child of a cold prompt finds nothing."""
    backend = reciter.open()
    asked = request("wxyz", "abc", n=3, max_tokens=2)
    assert await cached_tokens(backend, asked) == 0
    assert await cached_tokens(backend, asked) == 3 + 2


async def test_tenants_and_salts_find_nothing_of_each_other(reciter: Reciter) -> None:
    backend = reciter.open()
    asked = request("wxyz", max_tokens=1)
    owners = [
        replace(asked, tenant=tenant, cache_salt=salt)
        for tenant, salt in itertools.product(["", "one", "two"], ["", "salt"])
    ]
    assert [await cached_tokens(backend, owner) for owner in owners] == [0] * 6
    assert [await cached_tokens(backend, owner) for owner in owners] == [3] * 6


async def test_sharing_joins_the_tenants_and_not_the_salts(reciter: Reciter) -> None:
    backend = reciter.open_on(reciter.start(), sharing="shared")
    one = replace(request("wxyz", max_tokens=1), tenant="one")
    assert await cached_tokens(backend, one) == 0
    assert await cached_tokens(backend, replace(one, tenant="two")) == 3
    assert await cached_tokens(backend, replace(one, cache_salt="salt")) == 0
    assert await cached_tokens(backend, replace(one, tenant="two", cache_salt="salt")) == 3


def test_no_client_can_spell_another_tenant_s_salt() -> None:
    """However tenant and salt run together."""
    asked = request("x")
    owners = [("a", "b"), ("ab", ""), ("", "ab"), ("", "1:ab"), ("1:a", "b"), ("1", ":ab")]
    salts = {cache_salt(replace(asked, tenant=t, cache_salt=s), "tenant") for t, s in owners}
    assert len(salts) == len(owners)


async def test_an_answer_whose_time_is_over_is_what_came_until_then(reciter: Reciter) -> None:
    """The text held back for a stop string that did not come is part of it."""
    backend = reciter.open(step_s=1.0, is_simulated=True)

    tokens, finished = await run(backend, request("a", stop=("de-",), timeout_s=4.5))

    assert [token.text for token in tokens] == ["b", "c", "", ""]
    assert all(token.finish_reason is None for token in tokens)
    assert finished.reasons == (FinishReason.DEADLINE,)
    assert finished.tails == ("de",)
    assert finished.usage == Usage(prompt_tokens=1, completion_tokens=4)
    await until_idle(backend)


@pytest.mark.parametrize(("prompts", "n"), [(("a",), 2), (("a", "m"), 1)])
async def test_choices_that_never_ran_end_empty_beside_others(
    reciter: Reciter, prompts: tuple[str, ...], n: int
) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True, max_num_seqs=1)

    tokens, finished = await run(backend, request(*prompts, n=n, timeout_s=2.5))

    assert [text_of(tokens, index) for index in range(2)] == ["bc", ""]
    assert finished.reasons == (FinishReason.DEADLINE,) * 2
    assert finished.usage.completion_tokens == 2


async def test_a_choice_that_ended_in_time_keeps_its_reason(reciter: Reciter) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True)

    tokens, finished = await run(backend, request("y", "a", timeout_s=5.5))

    assert [text_of(tokens, index) for index in range(2)] == ["z", "bcdef"]
    assert finished.reasons == (FinishReason.EOS, FinishReason.DEADLINE)


async def test_a_request_that_got_no_token_in_time_is_an_error(reciter: Reciter) -> None:
    backend = reciter.open(step_s=1.0, is_simulated=True)

    with pytest.raises(DeadlineExceeded) as caught:
        await run(backend, request("a", "m", n=2, timeout_s=0.5))

    assert not caught.value.retryable
    await until_idle(backend)


async def test_the_engine_gets_what_is_left_when_the_prompt_has_been_encoded(
    reciter: Reciter, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    backend = reciter.open(journal=str(journal))
    reciter.template_takes_s = 1.5
    prompt = ChatPrompt(messages=(Message(role="user", content="a"),))

    asked_s = reciter.clock()
    await run(backend, request(prompt, max_tokens=1, timeout_s=10.0))
    encoding_s = reciter.clock() - asked_s
    await run(backend, request(prompt, max_tokens=1))
    with pytest.raises(DeadlineExceeded):
        await run(backend, request(prompt, max_tokens=1, timeout_s=1.0))

    assert encoding_s >= 1.5
    assert [asked.timeout_s for asked in journal_at(journal)] == [10.0 - encoding_s, None]


async def test_the_engine_is_told_whose_a_sequence_is_and_of_which_class(
    reciter: Reciter, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    backend = reciter.open(journal=str(journal))
    asked = replace(request("a", n=2, max_tokens=1), tenant="t1", weight=2.5, priority=-1)

    await run(backend, asked)
    await run(backend, request("a", max_tokens=1))

    told = [(one.tenant, one.weight, one.priority) for one in journal_at(journal)]
    assert told == [("t1", 2.5, -1)] * 2 + [("", 1.0, 0)]


async def test_a_full_engine_says_when_to_come_back(reciter: Reciter) -> None:
    backend = reciter.open(max_num_seqs=1, max_waiting=0, step_s=0.001, retry_after_s=2.25)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    async with aclosing(backend.generate(request("a", sampling=sampling))) as running:
        await anext(running)

        with pytest.raises(BackendOverloaded) as caught:
            await run(backend, request("b"))

    assert caught.value.retry_after_s == 2.25
