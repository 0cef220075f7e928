"""The backend over real sockets: its own controller, and workers that say what they are told."""

from __future__ import annotations

import json
from contextlib import aclosing

import pytest

from backends.base import BackendState
from backends.errors import (
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
)
from backends.static_batch.fastchat.remote import FastChatBackend
from backends.types import (
    UNLIMITED_TOKENS,
    Finished,
    FinishReason,
    SamplingParams,
    TextPrompt,
    Usage,
    child_seed,
)
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    frame,
    says,
)
from tests.backends.static_batch.fastchat.remote_requests import (
    CHAT,
    fails_with,
    idle,
    request,
    run,
    silent_after,
    text,
)


async def test_answers_a_chat(backend: FastChatBackend) -> None:
    frames = (frame("Hi"), frame("Hi you"), frame("Hi you", "stop", tokens=2))
    async with CannedWorker(says(*frames)).running() as worker:
        await worker.register(backend.controller_address)

        tokens, finished = await run(backend, request(CHAT, max_tokens=50))

    assert text(tokens) == "Hi you"
    assert [token.finish_reason for token in tokens][-1] is FinishReason.EOS
    assert finished == Finished(
        reasons=(FinishReason.EOS,), usage=Usage(prompt_tokens=7, completion_tokens=2)
    )
    [asked] = worker.asked
    assert asked["prompt"] == "Be kind. USER: Hello there ASSISTANT:"
    assert asked["model"] == "vicuna"
    assert asked["stop_token_ids"] == [2]


async def test_sends_sampling_params_in_the_workers_words(backend: FastChatBackend) -> None:
    sampling = SamplingParams(
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        seed=2**64 - 1,
        stop_token_ids=(5, 2),
    )
    async with CannedWorker(conversation={"stop_str": "###"}).running() as worker:
        await worker.register(backend.controller_address)

        await run(backend, request(CHAT, sampling=sampling, max_tokens=3, stop=("mine",)))

    assert worker.asked == [
        {
            "model": "vicuna",
            "prompt": "Be kind. USER: Hello there ASSISTANT:",
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.2,
            "presence_penalty": -0.3,
            "max_new_tokens": 3,
            "stop": ["###"],
            "stop_token_ids": [2, 5],
            "echo": False,
            "seed": 2**64 - 1,
        }
    ]


async def test_a_plain_prompt_is_sent_as_it_is(backend: FastChatBackend) -> None:
    async with CannedWorker(conversation={"stop_str": "###"}).running() as worker:
        await worker.register(backend.controller_address)

        tokens, _ = await run(backend, request(max_tokens=4))

    assert text(tokens) == "one two threeone"
    assert (worker.asked[0]["prompt"], worker.asked[0]["stop"]) == ("one two three", [])
    assert worker.asked[0]["top_k"] == -1


async def test_choices_run_side_by_side_each_with_a_seed_of_its_own(
    backend: FastChatBackend,
) -> None:
    prompts = (TextPrompt(text="a b"), TextPrompt(text="x y z"))
    sampling = SamplingParams(seed=99)
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)

        tokens, finished = await run(
            backend, request(*prompts, sampling=sampling, n=2, max_tokens=4)
        )

    assert [text(tokens, i) for i in range(4)] == ["a ba b", "a ba b", "x y zx", "x y zx"]
    assert finished.reasons == (FinishReason.LENGTH,) * 4
    assert finished.usage == Usage(prompt_tokens=14, completion_tokens=16)
    seeds = {(asked["prompt"], asked["seed"]) for asked in worker.asked}
    assert seeds == {
        *(("a b", child_seed(99, i)) for i in (0, 1)),
        *(("x y z", child_seed(99, i)) for i in (2, 3)),
    }


async def test_asks_for_no_more_than_fits(backend: FastChatBackend) -> None:
    """FastChat cuts a prompt's front silently; here it is always whole."""
    async with CannedWorker(context_length=10).running() as worker:
        await worker.register(backend.controller_address)

        await run(backend, request())
        await run(backend, request(max_tokens=100))
        await run(backend, request(max_tokens=5))
        assert (await backend.status()).max_model_len == 10

    assert [asked["max_new_tokens"] for asked in worker.asked] == [6, 6, 5]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "clamp", "figures"),
    [
        ("a b c d e f g h i", UNLIMITED_TOKENS, True, (9, 0, 9)),
        ("a b c", 7, False, (3, 7, 9)),
    ],
)
async def test_says_in_figures_that_a_prompt_is_too_long(
    backend: FastChatBackend,
    prompt: str,
    max_tokens: int,
    clamp: bool,
    figures: tuple[int, int, int],
) -> None:
    async with CannedWorker(context_length=10).running() as worker:
        await worker.register(backend.controller_address)
        asking = request(TextPrompt(text=prompt), max_tokens=max_tokens, clamp_max_tokens=clamp)

        with pytest.raises(PromptTooLong) as caught:
            await run(backend, asking)

    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == figures
    assert worker.asked == []


async def test_a_worker_that_knows_neither_context_nor_counts_is_asked_for_its_default(
    backend: FastChatBackend,
) -> None:
    """And its usage is an estimate, and said to be."""
    write = says(frame("x" * 8), frame("x" * 9, "stop"))
    async with CannedWorker(write, context_length=None, counts=False).running() as worker:
        await worker.register(backend.controller_address)

        _, finished = await run(backend, request())

        assert worker.asked[0]["max_new_tokens"] == 256
        assert finished.usage == Usage(prompt_tokens=4, completion_tokens=3, estimated=True)
        assert (await backend.status()).max_model_len == 0


async def test_no_tokens_are_no_events_and_no_work(backend: FastChatBackend) -> None:
    """I-MAX-TOKENS-ZERO."""
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)

        tokens, finished = await run(backend, request(max_tokens=0, n=2))

    assert tokens == []
    assert finished.reasons == (FinishReason.LENGTH,) * 2
    assert finished.usage == Usage(prompt_tokens=3, completion_tokens=0)
    assert worker.asked == []


async def test_a_stop_string_ends_the_answer_and_the_call(backend: FastChatBackend) -> None:
    """S-STOP-SPLIT: though the worker would go on."""
    worker = silent_after(frame("a b", tokens=2), frame("a b c d", tokens=4))
    async with worker.running():
        await worker.register(backend.controller_address)

        tokens, finished = await run(backend, request(stop=("c",)))
        await idle(worker)

    assert text(tokens) == "a b "
    assert finished.reasons == (FinishReason.STOP,)
    assert finished.usage.completion_tokens == 4


async def test_a_character_in_two_pieces_is_never_split(backend: FastChatBackend) -> None:
    whole = json.dumps({"text": "naïve 字", "error_code": 0}, ensure_ascii=False).encode()
    pieces = [frame("na\ufffd"), *(whole[i : i + 1] for i in range(len(whole))), b"\0"]
    async with CannedWorker(says(*pieces, frame("naïve 字", "stop"))).running() as worker:
        await worker.register(backend.controller_address)

        tokens, _ = await run(backend, request())

    assert text(tokens) == "naïve 字"
    assert "\ufffd" not in "".join(token.text for token in tokens)


async def test_time_that_is_over_ends_an_answer_as_it_stands(backend: FastChatBackend) -> None:
    worker = silent_after(frame("so far, EN", tokens=5))
    async with worker.running():
        await worker.register(backend.controller_address)

        tokens, finished = await run(backend, request(n=2, stop=("END",), timeout_s=3.0))
        await idle(worker)

    assert [text(tokens, index) for index in range(2)] == ["so far, "] * 2
    assert finished.reasons == (FinishReason.DEADLINE,) * 2
    assert finished.tails == ("EN", "EN")
    assert finished.usage.completion_tokens == 10


async def test_no_token_in_time_is_an_error_for_good(backend: FastChatBackend) -> None:
    worker = silent_after()
    async with worker.running():
        await worker.register(backend.controller_address)

        assert await fails_with(DeadlineExceeded, backend, request(timeout_s=0.3)) == []
        await idle(worker)


async def test_leaving_closes_every_socket_at_once(backend: FastChatBackend) -> None:
    """S-ABORT-N."""
    worker = silent_after(frame("so far"))
    async with worker.running():
        await worker.register(backend.controller_address)
        async with aclosing(backend.generate(request(n=3))) as stream:
            await anext(stream)
            assert (await backend.status()).num_running == 1
        assert (await backend.status()).num_running == 0

        await idle(worker)


async def test_the_shorter_queue_gets_the_next_request(backend: FastChatBackend) -> None:
    async with CannedWorker().running() as a, CannedWorker().running() as b:
        await a.register(backend.controller_address)
        await b.register(backend.controller_address, worker_status={**b.status, "queue_length": 2})

        for _ in range(6):
            await run(backend, request(max_tokens=1))

    assert (len(a.asked), len(b.asked)) == (4, 2)


async def test_a_worker_that_cannot_be_reached_is_passed_over(backend: FastChatBackend) -> None:
    """It stays registered, since FastChat's workers register before they listen."""
    async with CannedWorker().running() as gone:
        await gone.register(backend.controller_address)
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)

        for _ in range(3):
            tokens, _ = await run(backend, request(max_tokens=1))
            assert text(tokens) == "one"

        assert (await backend.status()).engine.startswith("fastchat: 2 workers")
    await fails_with(BackendUnavailable, backend, request())


async def test_without_a_worker_it_is_down_and_says_why(backend: FastChatBackend) -> None:
    status = await backend.status()
    assert status.state is BackendState.DOWN
    assert status.detail == "no worker serves 'vicuna' at old's controller"
    await fails_with(BackendUnavailable, backend, request())

    async with CannedWorker(model="llama").running() as other:
        await other.register(backend.controller_address)
        assert (await backend.status()).state is BackendState.DOWN
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)
        assert (await backend.status()).state is BackendState.READY
        assert (await backend.status()).detail == ""


async def test_a_worker_that_registers_anew_is_asked_anew(backend: FastChatBackend) -> None:
    """It may have another model: FastChat keeps the first template for ever."""
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)
        for _ in range(2):
            await run(backend, request(max_tokens=1))
        assert worker.calls.count("/worker_get_conv_template") == 1

        await worker.register(backend.controller_address)
        await run(backend, request(max_tokens=1))
        assert worker.calls.count("/worker_get_conv_template") == 2
