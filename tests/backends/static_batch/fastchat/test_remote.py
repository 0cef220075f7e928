"""The backend over real sockets: its own controller, and workers that say what they are told."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from backends.base import BackendState
from backends.errors import (
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
    StreamInterrupted,
    UnsupportedFeature,
)
from backends.spec import BackendConfigError, BackendSpec, OptionValue
from backends.static_batch.fastchat.remote import FastChatBackend, open_backend
from backends.types import (
    UNLIMITED_TOKENS,
    BeamParams,
    ChatPrompt,
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
    child_seed,
)
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    Params,
    Write,
    frame,
    says,
)

CHAT = ChatPrompt(messages=(Message(role="user", content="Hello there"),))


def spec(**options: OptionValue) -> BackendSpec:
    return BackendSpec(
        name="old", engine="fastchat", model="vicuna", options={"controller_port": 0, **options}
    )


@pytest.fixture
async def backend() -> AsyncIterator[FastChatBackend]:
    backend = await open_backend(spec())
    yield backend
    await backend.aclose()


def request(
    *prompts: Prompt, sampling: SamplingParams | None = None, **fields: Any
) -> GenerationRequest:
    return GenerationRequest(
        request_id="r",
        model="public-name",
        prompts=prompts or (TextPrompt(text="one two three"),),
        sampling=sampling or SamplingParams(),
        **fields,
    )


async def run(backend: FastChatBackend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    async with aclosing(backend.generate(request)) as stream:
        *tokens, finished = [event async for event in stream]
    assert isinstance(finished, Finished)
    return [token for token in tokens if isinstance(token, Token)], finished


async def fails_with(
    kind: type[Exception], backend: FastChatBackend, request: GenerationRequest
) -> list[Token]:
    """The tokens that came before the error."""
    tokens: list[Token] = []

    async def collect() -> None:
        async with aclosing(backend.generate(request)) as stream:
            async for event in stream:
                assert isinstance(event, Token)
                tokens.append(event)

    with pytest.raises(kind) as caught:
        await collect()
    assert type(caught.value) is kind
    return tokens


def text(tokens: list[Token], index: int = 0) -> str:
    return "".join(token.text for token in tokens if token.index == index)


def hanging_after(*pieces: bytes, until: Callable[[], asyncio.Event]) -> Write:
    """Sends these bytes, and nothing more until the event."""

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        for piece in pieces:
            yield piece
        await until().wait()

    return write


def silent_after(*pieces: bytes) -> CannedWorker:
    """A worker that sends these bytes and then nothing, for as long as it runs."""
    worker = CannedWorker(hanging_after(*pieces, until=lambda: worker.silence))
    return worker


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


async def idle(worker: CannedWorker) -> None:
    async with asyncio.timeout(30):
        while worker.num_running:
            await asyncio.sleep(0.005)


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


async def test_closing_it_ends_every_request_with_an_error(backend: FastChatBackend) -> None:
    worker = silent_after(frame("so far"))
    async with worker.running():
        await worker.register(backend.controller_address)
        begun = backend.generate(request())
        await anext(begun)

        await backend.aclose()
        await backend.aclose()

        with pytest.raises(StreamInterrupted):
            await anext(begun)
        await fails_with(BackendUnavailable, backend, request())
        assert (await backend.status()).state is BackendState.DOWN


@pytest.mark.parametrize("last", [(), (frame("so far, and on"), frame("so far, and on", "stop"))])
async def test_closing_it_ends_its_requests_though_another_goes_on(last: tuple[bytes, ...]) -> None:
    """Whether the worker says nothing more, or all the rest is there already."""
    port = free_port()
    backend = await open_backend(spec(controller_port=port))
    other = await open_backend(spec(controller_port=port))
    said_all = asyncio.Event()
    worker: CannedWorker

    async def write(params: Params) -> AsyncGenerator[bytes, None]:
        yield frame("so far")
        await said_all.wait()
        for piece in last:
            yield piece
        await worker.silence.wait()

    worker = CannedWorker(write)
    async with worker.running():
        await worker.register(backend.controller_address)
        begun = backend.generate(request())
        await anext(begun)

        said_all.set()
        await run(other, request(max_tokens=0))  # gives the rest time to come
        await backend.aclose()

        with pytest.raises(StreamInterrupted):
            await anext(begun)
        assert (await other.status()).state is BackendState.READY
    await other.aclose()


async def test_backends_on_one_port_share_a_controller() -> None:
    port = free_port()
    first = await open_backend(spec(controller_port=port))
    second = await open_backend(
        BackendSpec(
            name="other", engine="fastchat", model="llama", options={"controller_port": port}
        )
    )
    async with CannedWorker().running() as vicuna, CannedWorker(model="llama").running() as llama:
        await vicuna.register(f"http://127.0.0.1:{port}")
        await llama.register(f"http://127.0.0.1:{port}")
        await first.aclose()

        tokens, _ = await run(second, request(max_tokens=1))

        assert text(tokens) == "one"
        assert len(llama.asked) == 1
        assert vicuna.asked == []
    await second.aclose()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


async def test_backends_on_one_port_must_agree() -> None:
    port = free_port()
    first = await open_backend(spec(controller_port=port))
    with pytest.raises(BackendConfigError, match=f"^old: another backend has .* {port} "):
        await open_backend(spec(controller_port=port, dispatch_method="lottery"))
    await first.aclose()


async def test_a_taken_port_names_itself_and_the_remedy() -> None:
    """P-PORT."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BackendConfigError, match=f"old: .*{port}.*controller_port"):
            await open_backend(spec(controller_port=port))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dispatch_method": "random"}, "must be one of 'lottery', 'shortest_queue'"),
        ({"controller_port": 70_000}, r"controller_port must be in \[0, 65535\]"),
        ({"heart_beat_expiration_s": 0.0}, "must be above 0"),
        ({"worker_api_timeout_s": math.nan}, "must be above 0"),
        ({"controller_prot": 1}, "did you mean 'controller_port'"),
    ],
)
async def test_a_wrong_option_is_refused(options: dict[str, OptionValue], message: str) -> None:
    with pytest.raises(BackendConfigError, match=f"^old: .*{message}"):
        await open_backend(spec(**options))


async def test_a_listed_host_may_register() -> None:
    backend = await open_backend(spec(worker_hosts=" worker.example , 8.8.8.8 "))
    worker = CannedWorker()
    worker.address = "http://worker.example:21002"

    await worker.register(backend.controller_address)

    assert (await backend.status()).state is BackendState.READY
    await backend.aclose()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
