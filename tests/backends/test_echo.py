from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from backends.base import BackendState
from backends.echo import EOS_TOKEN_ID, EchoBackend, EchoOptions, split
from backends.errors import (
    BackendOverloaded,
    BackendRejected,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
    StreamInterrupted,
)
from backends.types import (
    UNLIMITED_TOKENS,
    BeamParams,
    ChatPrompt,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Message,
    Prompt,
    SamplingParams,
    TextPrompt,
    Token,
    TokenPrompt,
    Usage,
)


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        await asyncio.sleep(0)


def request(
    prompt: Prompt | str = "to be or",
    *,
    max_tokens: int = UNLIMITED_TOKENS,
    clamp_max_tokens: bool = True,
    n: int = 1,
    stop: tuple[str, ...] = (),
    sampling: SamplingParams | None = None,
    timeout_s: float = math.inf,
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        model="echo",
        prompts=(TextPrompt(text=prompt) if isinstance(prompt, str) else prompt,),
        sampling=sampling or SamplingParams(),
        max_tokens=max_tokens,
        clamp_max_tokens=clamp_max_tokens,
        n=n,
        stop=stop,
        timeout_s=timeout_s,
    )


async def run(backend: EchoBackend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    async with aclosing(backend.generate(request)) as stream:
        events: list[Event] = [event async for event in stream]
    *tokens, finished = events
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


async def read(stream: AsyncGenerator[Event, None]) -> None:
    async for _ in stream:
        pass


def echo(options: EchoOptions | None = None, clock: Clock | None = None) -> EchoBackend:
    clock = clock or Clock()
    return EchoBackend("echo", options, sleep=clock.sleep, clock=clock.read)


@pytest.mark.parametrize("text", ["", "to be  or", "  a\n\nb ", " ", "é ü"])
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(split(text)) == text


async def test_says_the_prompt_back_and_counts_the_end() -> None:
    tokens, finished = await run(echo(), request())

    assert [token.text for token in tokens] == ["to", " be", " or", ""]
    assert (tokens[-1].token_id, tokens[-1].special) == (EOS_TOKEN_ID, True)
    assert finished.reasons == (FinishReason.EOS,)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=4)


async def test_says_the_last_message_of_a_chat() -> None:
    messages = (Message(role="user", content="one two"), Message(role="user", content="three"))

    tokens, finished = await run(echo(), request(ChatPrompt(messages=messages)))

    assert [token.text for token in tokens] == ["three", ""]
    assert finished.usage.prompt_tokens == 3


async def test_says_token_ids_and_a_text_of_its_own() -> None:
    tokens, _ = await run(echo(), request(TokenPrompt(token_ids=(7, 8))))
    other, _ = await run(echo(EchoOptions(text="fixed")), request())

    assert [token.text for token in tokens] == ["7", " 8", ""]
    assert [token.text for token in other] == ["fixed", ""]


async def test_keeps_the_end_of_a_text_to_be_truncated() -> None:
    tokens, finished = await run(echo(), request(TextPrompt(text="a b c", truncate=2)))

    assert [token.text for token in tokens] == [" b", " c", ""]
    assert finished.usage.prompt_tokens == 2


async def test_says_what_it_can_in_the_time_it_has() -> None:
    backend = echo(EchoOptions(first_token_delay_s=1.0, token_delay_s=1.0))

    tokens, finished = await run(backend, request("a b c d", stop=(" b d",), timeout_s=2.5))

    assert [token.text for token in tokens] == ["a", ""]
    assert finished.reasons == (FinishReason.DEADLINE,)
    assert finished.tails == (" b",)
    assert finished.usage.completion_tokens == 2
    with pytest.raises(DeadlineExceeded):
        await run(backend, request(timeout_s=1.0))
    assert (await backend.status()).num_running == 0


async def test_ends_at_max_tokens_at_a_stop_string_and_at_a_stop_token() -> None:
    (*_, last), _ = await run(echo(), request(max_tokens=2))
    assert (last.text, last.finish_reason) == (" be", FinishReason.LENGTH)

    tokens, finished = await run(echo(), request(stop=("e o",)))
    assert [token.text for token in tokens] == ["to", " b", ""]
    assert finished.reasons == (FinishReason.STOP,)

    stop_id = tokens[1].token_id
    assert stop_id is not None
    (*_, last), _ = await run(echo(), request(sampling=SamplingParams(stop_token_ids=(stop_id,))))
    assert (last.text, last.finish_reason) == (" be", FinishReason.STOP)


async def test_goes_round_again_when_it_must_not_end() -> None:
    tokens, finished = await run(
        echo(), request("a b", max_tokens=5, sampling=SamplingParams(ignore_eos=True))
    )

    assert [token.text for token in tokens] == ["a", " b", "a", " b", "a"]
    assert finished.reasons == (FinishReason.LENGTH,)


async def test_says_a_short_answer_again_until_there_are_enough_tokens() -> None:
    """E-MIN-TOKENS."""
    sampling = SamplingParams(min_tokens=5)
    tokens, finished = await run(EchoBackend("e"), request(sampling=sampling))
    assert "".join(token.text for token in tokens) == "to be orto be"
    assert (finished.reasons, finished.usage.completion_tokens) == ((FinishReason.EOS,), 6)
    tokens, finished = await run(EchoBackend("e"), request(stop=("be",), sampling=sampling))
    assert finished.reasons == (FinishReason.EOS,)
    tokens, finished = await run(
        EchoBackend("e"), request("a b c d e f g", stop=("f",), sampling=sampling)
    )
    assert "".join(token.text for token in tokens) == "a b c d e "
    assert finished.reasons == (FinishReason.STOP,)


async def test_interleaves_its_choices() -> None:
    tokens, finished = await run(echo(EchoOptions(tokens_per_step=2)), request("a b c", n=2))

    assert [token.index for token in tokens] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert finished.reasons == (FinishReason.EOS, FinishReason.EOS)


async def test_is_certain_of_every_token() -> None:
    sampling = SamplingParams(logprobs=True, top_logprobs=2)

    (token, *_), _ = await run(echo(), request(sampling=sampling))

    assert token.logprob is not None
    assert (token.logprob.text, token.logprob.logprob) == ("to", 0.0)
    assert token.top_logprobs == (token.logprob,)


async def test_takes_the_time_it_is_told_to() -> None:
    clock = Clock()

    _, finished = await run(
        echo(EchoOptions(first_token_delay_s=5.0, token_delay_s=0.5), clock), request()
    )

    assert finished.queue_s == 5.0
    assert clock.now_s == 6.5


async def test_fails_as_it_is_told_to() -> None:
    with pytest.raises(BackendUnavailable):
        await run(echo(EchoOptions(fail_before=True)), request())

    stream = echo(EchoOptions(fail_after_tokens=2)).generate(request())
    for text in ("to", " be"):
        event = await anext(stream)
        assert isinstance(event, Token)
        assert event.text == text
    with pytest.raises(StreamInterrupted):
        await anext(stream)


async def test_notes_which_requests_were_closed_before_their_end() -> None:
    backend = echo()
    async with aclosing(backend.generate(request())) as stream:
        await anext(stream)
        assert (await backend.status()).num_running == 1

    assert backend.aborted == ["r"]
    assert (await backend.status()).num_running == 0


async def test_takes_no_more_requests_than_it_is_told_to() -> None:
    backend = echo(EchoOptions(max_concurrent_requests=1))
    async with aclosing(backend.generate(request())) as stream:
        await anext(stream)
        with pytest.raises(BackendOverloaded):
            await run(backend, request())

    await run(backend, request())


async def test_holds_a_request_to_its_context() -> None:
    backend = echo(EchoOptions(max_model_len=4))

    with pytest.raises(PromptTooLong):
        await run(backend, request("a b c d"))
    with pytest.raises(PromptTooLong):
        await run(backend, request("a b c", max_tokens=2, clamp_max_tokens=False))
    tokens, _ = await run(backend, request("a b c", max_tokens=2))
    assert [token.text for token in tokens] == ["a"]


async def test_refuses_an_empty_prompt() -> None:
    with pytest.raises(BackendRejected):
        await run(echo(), request(""))
    with pytest.raises(BackendRejected):
        await echo().encode(TextPrompt(text=""))


async def test_closing_it_ends_a_request_that_sleeps() -> None:
    asleep = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        asleep.set()
        await asyncio.sleep(delay_s)

    backend = EchoBackend("echo", EchoOptions(first_token_delay_s=3600), sleep=sleep)
    waiting = asyncio.create_task(read(backend.generate(request())))
    await asleep.wait()

    await backend.aclose()

    with pytest.raises(BackendUnavailable):
        await waiting
    assert (await backend.status()).state is BackendState.DOWN


def test_refuses_options_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="delays must not be negative"):
        EchoOptions(token_delay_s=-1.0)
    with pytest.raises(ValueError, match="tokens_per_step must be at least 1"):
        EchoOptions(tokens_per_step=0)


async def test_refuses_beams_by_its_name() -> None:
    with pytest.raises(BackendRejected, match="backend echo") as refusal:
        await run(EchoBackend("echo"), replace(request(), beams=BeamParams(width=2)))
    assert refusal.value.param == "use_beam_search"
