"""A local backend that goes on with what another has begun."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backends.base import Resuming
from backends.types import (
    BeamParams,
    ChoiceSoFar,
    FinishReason,
    GenerationRequest,
    Resumption,
    SamplingParams,
    Token,
    Usage,
)
from tests.backends.byte_tokenizer import byte_tokenizer
from tests.backends.reciting import Reciter, request, run, text_of

OURS = byte_tokenizer().fingerprint


def resumed(whole: GenerationRequest, *choices: ChoiceSoFar, vocabulary: str = OURS) -> Any:
    return replace(whole, resume=Resumption(choices=choices, vocabulary=vocabulary))


def so_far(tokens: list[Token], index: int = 0) -> ChoiceSoFar:
    """What the client has after these."""
    own = [token for token in tokens if token.index == index]
    return ChoiceSoFar(
        text=text_of(own, index),
        token_ids=tuple(token.token_id for token in own if token.token_id is not None),
        finish_reason=own[-1].finish_reason if own else None,
    )


async def test_is_one_that_resumes(reciter: Reciter) -> None:
    backend = reciter.open()
    assert isinstance(backend, Resuming)
    assert backend.vocabulary == OURS
    assert backend.can_resume(request("a"))


async def test_has_its_limits(reciter: Reciter) -> None:
    backend = reciter.open()
    searching = replace(request("a", max_tokens=3), beams=BeamParams(width=2))
    asking = request("a", sampling=SamplingParams(prompt_logprobs=1))
    assert not backend.can_resume(searching)
    assert not backend.can_resume(asking)


@pytest.mark.parametrize("stop", [(), ("fgh",), ("efgz", "gh")])
@pytest.mark.parametrize("cut", range(7))
async def test_gives_what_comes_behind_and_nothing_again(
    reciter: Reciter, cut: int, stop: tuple[str, ...]
) -> None:
    backend = reciter.open()
    whole = request("xyza", max_tokens=9, stop=stop)
    expected, end = await run(backend, whole)

    tokens, finished = await run(backend, resumed(whole, so_far(expected[:cut])))

    assert tokens == expected[cut:]
    assert (finished.reasons, finished.usage.completion_tokens) == (end.reasons, len(expected))
    assert finished.usage.prompt_tokens == 4


async def test_choices_that_have_ended_stay_as_they_are(reciter: Reciter) -> None:
    backend = reciter.open()
    whole = request("w", "a", max_tokens=6, n=2)
    expected, end = await run(backend, whole)
    ended = [token for token in expected if token.index < 2]
    begun = [token for token in expected if token.index == 2][:4]

    tokens, finished = await run(
        backend, resumed(whole, *(so_far([*ended, *begun], index) for index in range(4)))
    )

    assert {token.index for token in tokens} == {2, 3}
    assert text_of([*ended, *begun, *tokens], 2) == text_of(expected, 2) == "bcdefg"
    assert text_of(tokens, 3) == "bcdefg"
    assert finished.reasons == end.reasons
    assert finished.usage == Usage(
        prompt_tokens=2,
        completion_tokens=end.usage.completion_tokens,
        cached_tokens=finished.usage.cached_tokens,
    )


async def test_when_all_have_ended_only_the_end_is_told(reciter: Reciter) -> None:
    backend = reciter.open()
    whole = request("w")
    expected, end = await run(backend, whole)
    tokens, finished = await run(backend, resumed(whole, so_far(expected)))
    assert tokens == []
    assert (finished.reasons, finished.usage.completion_tokens) == (end.reasons, 4)


@pytest.mark.parametrize("vocabulary", ["", "another"])
async def test_foreign_ids_are_not_used_but_the_text_is(reciter: Reciter, vocabulary: str) -> None:
    whole = request("a", max_tokens=6, stop=("ef",), include_stop_str=True)
    before = ChoiceSoFar(text="bcd", token_ids=(7, 8))

    tokens, finished = await run(reciter.open(), resumed(whole, before, vocabulary=vocabulary))

    assert text_of(tokens) == "ef"
    assert finished.reasons == (FinishReason.STOP,)
    assert finished.usage.completion_tokens == 5


async def test_without_ids_the_text_is_enough(reciter: Reciter) -> None:
    before = ChoiceSoFar(text="bcd", token_ids=None)
    tokens, _ = await run(reciter.open(), resumed(request("a", max_tokens=6), before))
    assert text_of(tokens) == "efg"
