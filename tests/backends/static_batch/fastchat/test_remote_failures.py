"""What a FastChat backend makes of workers that fail, and of requests that none can serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from backends.errors import (
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    StreamInterrupted,
    UnsupportedFeature,
)
from backends.static_batch.fastchat.remote import FastChatBackend, open_backend
from backends.types import (
    BeamParams,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    Token,
    TokenPrompt,
)
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    Params,
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
    spec,
    text,
)


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ((frame("busy", error_code=42903),), BackendOverloaded),
        ((frame("CUDA out of memory", error_code=50002),), BackendOverloaded),
        ((frame("no worker", error_code=50005),), BackendUnavailable),
        ((frame("too late", error_code=50006),), BackendTimeout),
        ((frame("bad", error_code=40302),), BackendRejected),
        ((b'{"text": "br',), BackendProtocolError),
        ((b"no json\0",), BackendProtocolError),
        ((b'{"text": 7, "error_code": 0}\0',), BackendProtocolError),
        ((), BackendProtocolError),
    ],
)
async def test_a_failure_before_the_first_token_keeps_its_kind(
    backend: FastChatBackend, pieces: tuple[bytes, ...], kind: type[Exception]
) -> None:
    async with CannedWorker(says(*pieces)).running() as worker:
        await worker.register(backend.controller_address)

        assert await fails_with(kind, backend, request()) == []


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        (frame("dead", error_code=50001), StreamInterrupted),
        (frame("late", error_code=50006), StreamInterrupted),
        (frame("take it back"), BackendProtocolError),
        (b"{}\0", BackendProtocolError),
        (b'{"text": "said, and', BackendProtocolError),
    ],
)
async def test_a_failure_after_a_token_cannot_be_tried_again(
    backend: FastChatBackend, last: bytes, kind: type[Exception]
) -> None:
    go_on = asyncio.Event()

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        yield frame("said")
        await go_on.wait()
        yield last

    async with CannedWorker(write).running() as worker:
        await worker.register(backend.controller_address)
        async with aclosing(backend.generate(request())) as stream:
            first = await anext(stream)
            assert isinstance(first, Token)
            assert first.text == "said"
            go_on.set()
            with pytest.raises(kind) as caught:
                await anext(stream)
    assert type(caught.value) is kind


async def test_a_worker_that_breaks_off_is_an_error_of_its_time(backend: FastChatBackend) -> None:
    go_on = asyncio.Event()

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        if params["prompt"] == "early":
            raise ConnectionResetError
        yield frame("said")
        await go_on.wait()
        raise ConnectionResetError

    async with CannedWorker(write).running() as worker:
        await worker.register(backend.controller_address)
        await fails_with(BackendUnavailable, backend, request(TextPrompt(text="early")))
        async with aclosing(backend.generate(request())) as stream:
            await anext(stream)
            go_on.set()
            with pytest.raises(StreamInterrupted):
                await anext(stream)


async def test_a_worker_that_says_nothing_for_too_long_is_given_up() -> None:
    backend = await open_backend(spec(worker_api_timeout_s=0.5))
    worker = silent_after()
    async with worker.running():
        await worker.register(backend.controller_address)

        await fails_with(BackendTimeout, backend, request())
        await idle(worker)
    await backend.aclose()


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (SamplingParams(logprobs=True), "logprobs"),
        (SamplingParams(prompt_logprobs=0), "prompt_logprobs"),
        (SamplingParams(logit_bias=((1, 2.0),)), "logit_bias"),
        (SamplingParams(allowed_token_ids=(1,)), "allowed_token_ids"),
        (SamplingParams(bad_words=("x",)), "bad_words"),
        (SamplingParams(min_tokens=1), "min_tokens"),
        (SamplingParams(ignore_eos=True), "ignore_eos"),
        (SamplingParams(min_p=0.1), "min_p"),
        (SamplingParams(typical_p=0.5), "typical_p"),
    ],
)
async def test_what_workers_cannot_do_is_refused_by_name(
    backend: FastChatBackend, sampling: SamplingParams, param: str
) -> None:
    with pytest.raises(UnsupportedFeature, match=r"the backend old \(fastchat\) cannot") as caught:
        await run(backend, request(sampling=sampling))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("asking", "param"),
    [
        (request(TokenPrompt(token_ids=(1,))), "prompt"),
        (request(TextPrompt(text="x", truncate=3)), "truncate"),
        (request(TextPrompt(text="x", add_special_tokens=False)), "add_special_tokens"),
        (request(beams=BeamParams(width=2)), "use_beam_search"),
    ],
)
async def test_prompts_and_searches_that_workers_do_not_know_are_refused(
    backend: FastChatBackend, asking: GenerationRequest, param: str
) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        await run(backend, asking)
    assert caught.value.param == param


async def test_refuses_a_prompt_of_nothing(backend: FastChatBackend) -> None:
    async with CannedWorker().running() as worker:
        await worker.register(backend.controller_address)
        await fails_with(BackendRejected, backend, request(TextPrompt(text="")))


async def test_a_chat_that_the_template_cannot_express_is_refused(
    backend: FastChatBackend,
) -> None:
    async with CannedWorker(conversation={"sep_style": 19}).running() as worker:
        await worker.register(backend.controller_address)
        await fails_with(UnsupportedFeature, backend, request(CHAT))
        tokens, _ = await run(backend, request(max_tokens=1))
    assert text(tokens) == "one"
