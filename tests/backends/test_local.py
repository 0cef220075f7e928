from __future__ import annotations

import threading
from contextlib import aclosing
from typing import Any

import pytest

from backends import local
from backends.base import BackendState, Tokenizing
from backends.errors import (
    StreamInterrupted,
)
from backends.local import (
    LONG_PROMPT_CHARS,
    LONG_PROMPT_LOGPROBS,
)
from backends.text.logprobs import prompt_tokens
from backends.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    Message,
    PromptLogprobs,
    PromptToken,
    SamplingParams,
    TextPrompt,
    Token,
    Usage,
    child_seed,
)
from tests.backends.byte_tokenizer import EOS_ID, VOCAB_SIZE
from tests.backends.conftest import EngineProcesses
from tests.backends.reciting import (
    Reciter,
    events_of,
    read,
    request,
    run,
    text_of,
    until_idle,
)
from tests.backends.waiting import until


async def test_answers_in_text_and_counts_tokens_exactly(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(), request("xyza", max_tokens=5))

    assert [token.text for token in tokens] == ["b", "c", "d", "e", "f"]
    assert finished.reasons == (FinishReason.LENGTH,)
    assert finished.usage == Usage(prompt_tokens=4, completion_tokens=5)


async def test_counts_the_token_that_ends_the_answer_but_does_not_show_it(
    reciter: Reciter,
) -> None:
    tokens, finished = await run(reciter.open(), request("w"))

    assert text_of(tokens) == "xyz"
    assert (tokens[-1].token_id, tokens[-1].special) == (EOS_ID, True)
    assert finished.reasons == (FinishReason.EOS,)
    assert finished.usage.completion_tokens == 4


async def test_goes_past_the_end_of_the_answer_when_told(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)

    tokens, finished = await run(reciter.open(), request("w", max_tokens=6, sampling=sampling))

    assert text_of(tokens) == "xyz|}"
    assert finished.reasons == (FinishReason.LENGTH,)


@pytest.mark.parametrize(("include", "text"), [(False, "bcde"), (True, "bcdefgh")])
async def test_a_stop_string_ends_the_answer_and_the_engines_work_on_it(
    reciter: Reciter, include: bool, text: str
) -> None:
    backend = reciter.open(step_s=0.001)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)

    tokens, finished = await run(
        backend, request("a", stop=("fgh",), include_stop_str=include, sampling=sampling)
    )

    assert text_of(tokens) == text
    assert finished.reasons == (FinishReason.STOP,)
    assert finished.usage.completion_tokens == 7
    await until_idle(backend)


async def test_drops_and_does_not_count_what_was_drawn_behind_a_stop_string(
    reciter: Reciter,
) -> None:
    backend = reciter.open()
    async with aclosing(backend.generate(request("a", max_tokens=20, stop=("ef",)))) as stream:
        events = [await anext(stream)]
        await until(lambda: backend._client.num_pending == 0)  # all 20 have come meanwhile

        events += [event async for event in stream]

    assert "".join(event.text for event in events if isinstance(event, Token)) == "bcd"
    assert isinstance(events[-1], Finished)
    assert events[-1].usage.completion_tokens == 5


async def test_runs_every_child_of_every_prompt(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(), request("a", "mm", max_tokens=3, n=2))

    assert [text_of(tokens, index) for index in range(4)] == ["bcd", "bcd", "nop", "nop"]
    assert finished.reasons == (FinishReason.LENGTH,) * 4
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=12)


async def test_children_of_one_prompt_share_it(reciter: Reciter) -> None:
    """All but the first of each prompt are forked, so the engine counts each prompt once."""
    backend = reciter.open(max_num_seqs=6)

    await run(backend, request("a", "mm", max_tokens=3, n=3))

    assert (await backend.status()).prompt_tokens_total == 3


async def test_a_choice_that_stops_early_leaves_the_others(reciter: Reciter) -> None:
    backend = reciter.open(step_s=0.001)

    tokens, finished = await run(backend, request("a", "m", max_tokens=10, stop=("d",)))

    assert [text_of(tokens, index) for index in range(2)] == ["bc", "nopqrstuvw"]
    assert finished.reasons == (FinishReason.STOP, FinishReason.LENGTH)
    assert finished.usage.completion_tokens == 13


async def test_closing_aborts_every_choice(reciter: Reciter) -> None:
    """S-ABORT-N."""
    backend = reciter.open(step_s=0.001)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for _ in range(20):
        async with aclosing(backend.generate(request("a", n=4, sampling=sampling))) as stream:
            await anext(stream)

    await until_idle(backend)


async def test_a_request_tried_again_gets_nothing_of_its_first_try(reciter: Reciter) -> None:
    """Outputs of the first try can still be on their way when the second begins."""
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for _ in range(50):
        async with aclosing(backend.generate(request("a", sampling=sampling))) as stream:
            await anext(stream)

        tokens, _ = await run(backend, request("a", max_tokens=5))

        assert text_of(tokens) == "bcdef"


async def test_encodes_many_short_prompts_outside_the_loop(reciter: Reciter) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    backend = reciter.open()
    reciter.template_threads.clear()
    prompt = ChatPrompt(messages=(Message(role="user", content="x" * 100),))

    await backend.count_tokens((prompt,) * 50)

    assert "MainThread" not in reciter.template_threads


async def test_reports_logprobs_when_asked(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, logprobs=True)

    tokens, _ = await run(reciter.open(), request("a", max_tokens=1, sampling=sampling))

    assert tokens[0].logprob is not None
    assert (tokens[0].logprob.raw, tokens[0].logprob.logprob) == (b"b", -0.5)


async def test_tells_the_log_probabilities_of_every_prompt_once(reciter: Reciter) -> None:
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=1)

    events = await events_of(
        reciter.open(), request("aé", "m", max_tokens=1, n=2, sampling=sampling)
    )

    first, second = [event for event in events if isinstance(event, PromptLogprobs)]
    assert (first.prompt, second.prompt) == (0, 1)
    assert [(one.raw, one.start, one.logprob, one.rank) for one in first.tokens] == [
        (b"a", 0, None, None),
        ("é".encode()[:1], 1, -1.0, 1),
        ("é".encode()[1:], 1, -2.0, 2),
    ]
    assert [len(one.top_logprobs) for one in first.tokens] == [0, 1, 1]
    assert [one.text for one in second.tokens] == ["m"]
    for prompt in (0, 1):
        shown = [
            isinstance(event, PromptLogprobs)
            for event in events
            if (isinstance(event, PromptLogprobs) and event.prompt == prompt)
            or (isinstance(event, Token) and event.index // 2 == prompt)
        ]
        assert shown == [True, False, False]


async def test_a_prompt_can_be_scored_without_an_answer(reciter: Reciter) -> None:
    """I-MAX-TOKENS-ZERO: one sequence, whatever the number of choices."""
    backend = reciter.open(max_num_seqs=1, max_waiting=1)
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)

    prompt, finished = await events_of(
        backend, request("abc", max_tokens=0, n=2, sampling=sampling)
    )

    assert isinstance(prompt, PromptLogprobs)
    assert [one.logprob for one in prompt.tokens] == [None, -1.0, -2.0]
    assert isinstance(finished, Finished)
    assert finished.reasons == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    assert (await backend.status()).generation_tokens_total == 0


async def test_a_prompt_of_which_nothing_is_asked_computes_nothing(reciter: Reciter) -> None:
    backend = reciter.open()

    (finished,) = await events_of(backend, request("abc", max_tokens=0))

    assert isinstance(finished, Finished)
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    await run(backend, request("w", max_tokens=1))
    assert (await backend.status()).prompt_tokens_total == 1


async def test_long_prompts_are_told_outside_the_loop(
    reciter: Reciter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    threads: list[str] = []
    write = prompt_tokens

    def watched(*arguments: Any) -> tuple[PromptToken, ...]:
        threads.append(threading.current_thread().name)
        return write(*arguments)

    monkeypatch.setattr(local, "prompt_tokens", watched)
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=0)
    for length in (5, LONG_PROMPT_LOGPROBS + 2):
        await events_of(backend, request("a" * length, max_tokens=0, sampling=sampling))

    assert threads[0] == "MainThread"
    assert threads[1] != "MainThread"


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text"),
    [
        (0, "c", "b"),
        (1, "c", "b"),  # "c" is the second token
        (2, "c", "bcdefg"),
        (2, "cd", "b"),  # begun within the first two, complete after them
        (3, "cd", "bcdefg"),
        (6, "g", "bcdefg"),
    ],
)
async def test_stop_strings_wait_for_min_tokens(
    reciter: Reciter, min_tokens: int, stop: str, text: str
) -> None:
    """E-MIN-TOKENS: what is complete too early is text; the usage is exact."""
    sampling = SamplingParams(temperature=0.0, min_tokens=min_tokens)
    tokens, finished = await run(
        reciter.open(), request("a", max_tokens=6, stop=(stop,), sampling=sampling)
    )
    assert text_of(tokens) == text
    stopped = finished.reasons == (FinishReason.STOP,)
    assert stopped == (text == "b")
    assert finished.usage.completion_tokens == (len(text + stop) if stopped else 6)


async def test_gives_each_choice_a_seed_of_its_own(reciter: Reciter) -> None:
    """E-SEED: the same request gives the same answers, and the choices differ."""
    backend = reciter.open(starts_from_seed=True)
    sampling = SamplingParams(seed=5)

    tokens, _ = await run(backend, request("a", max_tokens=8, n=3, sampling=sampling))
    again, _ = await run(backend, request("a", max_tokens=8, n=3, sampling=sampling))
    alone, _ = await run(backend, request("a", max_tokens=8, sampling=sampling))

    answers = [[t.token_id for t in tokens if t.index == index] for index in range(3)]
    assert answers == [[t.token_id for t in again if t.index == index] for index in range(3)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert text_of(alone) == "ghijklmn", "a choice alone has the client's own seed"


def test_child_seeds_are_64_bits_and_differ() -> None:
    seeds = {child_seed(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(100)}

    assert len(seeds) == 300
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("num_chars", "in_loop"), [(LONG_PROMPT_CHARS, True), (LONG_PROMPT_CHARS + 1, False)]
)
async def test_encodes_a_long_prompt_outside_the_loop(
    reciter: Reciter, num_chars: int, in_loop: bool
) -> None:
    """E-LONG-PROMPT-BLOCKS-LOOP."""
    backend = reciter.open()
    reciter.template_threads.clear()  # of compiling it
    messages = (Message(role="user", content="x" * num_chars),)

    assert await backend.count_tokens((ChatPrompt(messages=messages),)) == num_chars + 4

    assert {name == "MainThread" for name in reciter.template_threads} == {in_loop}


async def test_counts_and_shows_the_tokens_of_a_prompt(reciter: Reciter) -> None:
    backend = reciter.open()
    assert isinstance(backend, Tokenizing)

    assert await backend.count_tokens((TextPrompt(text="abc"), TextPrompt(text="d"))) == 4
    assert [(t.token_id, t.text) for t in await backend.encode(TextPrompt(text="ab"))] == [
        (97, "a"),
        (98, "b"),
    ]


async def test_tells_what_it_last_heard_of_its_engine(reciter: Reciter) -> None:
    backend = reciter.open(max_num_seqs=3, max_waiting=4, max_model_len=50)
    assert (await backend.status()).state is BackendState.STARTING

    await run(backend, request("abc", max_tokens=5))

    status = await backend.status()
    assert status.state is BackendState.READY
    assert (status.model_id, status.max_model_len) == ("counting", 50)
    assert status.max_concurrent_requests == 7
    assert (status.prompt_tokens_total, status.generation_tokens_total) == (3, 5)
    assert status.deterministic


async def test_an_engine_that_dies_interrupts_the_answer(
    reciter: Reciter, engines: EngineProcesses
) -> None:
    process = engines.start(vocab_size=VOCAB_SIZE, step_s=0.001)
    backend = reciter.open_on(process)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    stream = backend.generate(request("a", sampling=sampling))
    await anext(stream)

    process.kill()

    with pytest.raises(StreamInterrupted):
        await read(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
