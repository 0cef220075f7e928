"""What `backends.base` promises, held against every backend there is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backends.base import Backend, BackendState, Tokenizing
from backends.client import EngineClient
from backends.echo import EchoBackend, EchoOptions
from backends.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
)
from backends.local import LocalBackend
from backends.registry import BackendSpec, host_command, open_backend
from backends.spec import OptionValue
from backends.static_batch.fastchat.remote import FastChatBackend
from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    Prompt,
    PromptLogprobs,
    SamplingParams,
    TextPrompt,
    Token,
    TokenPrompt,
)
from tests.backends.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.backends.conftest import MODEL, EngineProcess, counting_command
from tests.backends.static_batch.fastchat.canned_worker import CannedWorker
from tests.clock import FakeClock

OPTIONS: dict[str, dict[str, OptionValue]] = {
    "echo": {},
    "fastchat": {"controller_port": 0},
    "native": {"max_num_seqs": 8, "max_model_len": 128, "start_timeout_s": 120.0},
    "priority_batcher": {
        "max_model_len": 128,
        "default_generation_length": 16,
        "start_timeout_s": 120.0,
    },
    "static_batch": {"max_model_len": 128, "start_timeout_s": 120.0},
}
PROMPT = TextPrompt(text="Once upon a time there was")


class Kinds:
    """Opens backends of every kind. Their engine processes are started once, for all tests."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.clock = FakeClock()
        self._processes: dict[str, EngineProcess] = {}

    async def open(self, kind: str) -> Backend:
        if kind == "local":
            return self._open_local()
        spec = BackendSpec(
            name=kind,
            engine=kind,
            model="default",
            options=OPTIONS[kind],
            model_path=MODEL,
            socket_path=self._directory / f"{kind}.sock",
        )
        command = host_command(spec)
        if command is not None and kind not in self._processes:
            self._processes[kind] = EngineProcess(command)
        return await open_backend(spec)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()

    def open_in_simulated_time(self, kind: str) -> Backend:
        """One that takes a second for each token of a choice, and nobody waits for it."""
        if kind == "local":
            return self._open_local("simulated", step_s=1.0, is_simulated=True)
        options = EchoOptions(first_token_delay_s=1.0, token_delay_s=1.0)
        return EchoBackend(kind, options, sleep=self._pass_time, clock=self.clock)

    async def _pass_time(self, delay_s: float) -> None:
        self.clock.advance(delay_s)

    def _open_local(self, name: str = "local", **options: OptionValue) -> Backend:
        socket_path = self._directory / f"{name}.sock"
        if name not in self._processes:
            defaults = {"vocab_size": VOCAB_SIZE, "step_s": 0.001, "max_model_len": 10_000}
            command = counting_command(socket_path, {**defaults, **options})
            self._processes[name] = EngineProcess(command)
        return LocalBackend(
            name,
            EngineClient(socket_path),
            byte_tokenizer(),
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            clock=self.clock,
        )


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    kinds = Kinds(tmp_path_factory.mktemp("engines"))
    yield kinds
    kinds.close()


WITH_WEIGHTS = [
    pytest.param(kind, marks=pytest.mark.weights)
    for kind in ("native", "priority_batcher", "static_batch")
]
TOKENIZING = ("echo", "local", *WITH_WEIGHTS)

EVERY_KIND = pytest.mark.parametrize("backend", [*TOKENIZING, "fastchat"], indirect=True)
"""For what holds without token ids and exact counts, too: `ignore_eos` must be off."""


@pytest.fixture(params=TOKENIZING)
async def backend(request: pytest.FixtureRequest, kinds: Kinds) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        backend = await kinds.open(request.param)
        stack.push_async_callback(backend.aclose)
        if isinstance(backend, FastChatBackend):
            worker = CannedWorker(model="default")
            await stack.enter_async_context(worker.running())
            await worker.register(backend.controller_address)
        yield backend


@pytest.fixture(params=["echo", "local"])
async def simulated(request: pytest.FixtureRequest, kinds: Kinds) -> AsyncIterator[Backend]:
    backend = kinds.open_in_simulated_time(request.param)
    yield backend
    await backend.aclose()


def request(
    *prompts: Prompt,
    max_tokens: int = UNLIMITED_TOKENS,
    clamp_max_tokens: bool = True,
    n: int = 1,
    stop: tuple[str, ...] = (),
    ignore_eos: bool = True,
    logprobs: bool = False,
    prompt_logprobs: int | None = None,
    request_id: str = "r",
    timeout_s: float = math.inf,
) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        model="m",
        prompts=prompts or (PROMPT,),
        sampling=SamplingParams(
            temperature=0.0,
            ignore_eos=ignore_eos,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        ),
        max_tokens=max_tokens,
        clamp_max_tokens=clamp_max_tokens,
        n=n,
        stop=stop,
        timeout_s=timeout_s,
    )


async def run(backend: Backend, request: GenerationRequest) -> tuple[list[Token], Finished]:
    """All events, of which exactly the last is `Finished`."""
    async with aclosing(backend.generate(request)) as stream:
        events = [event async for event in stream]
    tokens = [event for event in events if isinstance(event, Token)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert len(tokens) == len(events) - 1
    return tokens, finished


async def read(stream: AsyncGenerator[Event, None]) -> None:
    async for _ in stream:
        pass


def text_of(tokens: list[Token], index: int = 0) -> str:
    return "".join(token.text for token in tokens if token.index == index)


async def until_status(backend: Backend, holds: Callable[[int, int], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            status = await backend.status()
            if holds(status.num_running, status.num_waiting):
                return
            await asyncio.sleep(0.005)


@EVERY_KIND
async def test_the_last_token_of_each_choice_alone_has_its_finish_reason(backend: Backend) -> None:
    asking = request(PROMPT, PROMPT, max_tokens=6, n=2, ignore_eos=False)
    tokens, finished = await run(backend, asking)

    assert len(finished.reasons) == 4
    for index, reason in enumerate(finished.reasons):
        reasons = [token.finish_reason for token in tokens if token.index == index]
        assert reasons == [None] * (len(reasons) - 1) + [reason]


async def test_usage_is_exact(backend: Backend) -> None:
    assert isinstance(backend, Tokenizing)
    other = TextPrompt(text="A second prompt")

    tokens, finished = await run(backend, request(PROMPT, other, max_tokens=6, n=2))

    assert finished.usage.completion_tokens == len(tokens) == 24
    assert finished.usage.prompt_tokens == await backend.count_tokens((PROMPT, other))
    assert not finished.usage.estimated


async def test_ends_at_max_tokens(backend: Backend) -> None:
    tokens, finished = await run(backend, request(max_tokens=1))

    assert len(tokens) == 1
    assert finished.reasons == (FinishReason.LENGTH,)


async def test_ends_before_a_stop_string_and_shows_nothing_of_it(backend: Backend) -> None:
    """S-STOP-SPLIT."""
    whole = text_of((await run(backend, request(max_tokens=12)))[0])
    stop = whole[4:7]

    tokens, finished = await run(backend, request(max_tokens=12, stop=(stop, "never said")))

    assert text_of(tokens) == whole[: whole.index(stop)]
    assert finished.reasons == (FinishReason.STOP,)
    assert finished.usage.completion_tokens == len(tokens)


async def test_an_answer_whose_time_is_over_is_what_came_until_then(simulated: Backend) -> None:
    whole, _ = await run(simulated, request(max_tokens=6))

    tokens, finished = await run(simulated, request(n=2, timeout_s=3.5))

    for index in range(2):
        ids = [token.token_id for token in tokens if token.index == index]
        assert ids == [token.token_id for token in whole[:3]]
    assert all(token.finish_reason is None for token in tokens)
    assert finished.reasons == (FinishReason.DEADLINE,) * 2
    assert finished.usage.completion_tokens == len(tokens) == 6


async def test_text_held_back_when_time_is_over_comes_with_the_end(simulated: Backend) -> None:
    whole = text_of((await run(simulated, request(max_tokens=3)))[0])

    tokens, finished = await run(simulated, request(stop=(whole + "?",), timeout_s=3.5))

    assert text_of(tokens) == ""
    assert finished.tails == (whole,)


async def test_an_answer_that_is_complete_in_time_is_whole(simulated: Backend) -> None:
    tokens, finished = await run(simulated, request(max_tokens=3, timeout_s=3.5))

    assert len(tokens) == 3
    assert finished.reasons == (FinishReason.LENGTH,)


async def test_a_request_that_got_no_token_in_time_is_an_error_for_good(
    simulated: Backend,
) -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        await run(simulated, request(n=2, timeout_s=0.5))

    assert not caught.value.retryable
    status = await simulated.status()
    assert (status.num_running, status.num_waiting) == (0, 0)


async def test_tokens_of_a_choice_come_in_the_order_they_have_alone(backend: Backend) -> None:
    alone, _ = await run(backend, request(max_tokens=10))

    together, _ = await run(backend, request(max_tokens=10, n=3))

    for index in range(3):
        ids = [token.token_id for token in together if token.index == index]
        assert ids == [token.token_id for token in alone]


async def test_requests_run_side_by_side_without_touching_each_other(backend: Backend) -> None:
    alone, _ = await run(backend, request(max_tokens=20))

    results = await asyncio.gather(
        *(run(backend, request(max_tokens=4 * i, request_id=f"{i}")) for i in range(1, 6))
    )

    for i, (tokens, _) in enumerate(results, start=1):
        assert [t.token_id for t in tokens] == [t.token_id for t in alone[: 4 * i]]


async def test_reports_the_logprob_of_every_token_when_asked(backend: Backend) -> None:
    tokens, _ = await run(backend, request(max_tokens=3, logprobs=True))

    assert [token.logprob and token.logprob.token_id for token in tokens] == [
        token.token_id for token in tokens
    ]
    assert all(token.logprob is not None and token.logprob.logprob <= 0.0 for token in tokens)


async def test_tells_of_each_prompt_before_its_choices_when_asked(backend: Backend) -> None:
    """E-PREFIX-PROMPT-LOGPROBS: twice, so that the second prompt is warm."""
    assert isinstance(backend, Tokenizing)
    other = TextPrompt(text="A second prompt")
    asking = request(PROMPT, other, max_tokens=2, n=2, prompt_logprobs=1)
    for _ in range(2):
        async with aclosing(backend.generate(asking)) as stream:
            events = [event async for event in stream]

        told = [event for event in events if isinstance(event, PromptLogprobs)]
        assert [event.prompt for event in told] == [0, 1]
        for prompt, event in zip(asking.prompts, told, strict=True):
            place = events.index(event)
            choices = [e.index // 2 for e in events[:place] if isinstance(e, Token)]
            assert event.prompt not in choices
            encoded = await backend.encode(prompt)
            assert [(t.token_id, t.start) for t in event.tokens] == [
                (t.token_id, t.start) for t in encoded
            ]
            first, *others = event.tokens
            assert (first.logprob, first.rank, first.top_logprobs) == (None, None, ())
            for token in others:
                assert token.logprob is not None
                assert token.logprob <= 0.0
                assert token.rank is not None
                assert token.rank >= 1
                assert len(token.top_logprobs) == 1


async def test_no_tokens_are_no_events_but_the_end(backend: Backend) -> None:
    """I-MAX-TOKENS-ZERO: with and without log-probabilities of the prompt."""
    assert isinstance(backend, Tokenizing)
    prompt_tokens = await backend.count_tokens((PROMPT,))
    for prompt_logprobs in (None, 0):
        asking = request(max_tokens=0, n=2, prompt_logprobs=prompt_logprobs)
        async with aclosing(backend.generate(asking)) as stream:
            *told, finished = [event async for event in stream]

        assert [type(event) for event in told] == [PromptLogprobs] * (prompt_logprobs is not None)
        assert isinstance(finished, Finished)
        assert finished.reasons == (FinishReason.LENGTH,) * 2
        assert finished.usage.prompt_tokens == prompt_tokens
        assert finished.usage.completion_tokens == 0


@EVERY_KIND
async def test_closing_the_generator_aborts_all_choices(backend: Backend) -> None:
    """S-ABORT-N."""
    async with aclosing(backend.generate(request(n=3, ignore_eos=False))) as stream:
        await anext(stream)
        await until_status(backend, lambda running, _: running > 0)

    await until_status(backend, lambda running, waiting: running == waiting == 0)


async def test_a_cancelled_reader_aborts_its_request_alone(backend: Backend) -> None:
    """S-CANCEL-CASCADE."""
    alone, _ = await run(backend, request(max_tokens=30))
    other = asyncio.create_task(run(backend, request(max_tokens=30)))
    cancelled = [
        asyncio.create_task(read(backend.generate(request(request_id=f"c{i}")))) for i in range(4)
    ]
    await until_status(backend, lambda running, _: running > 0)

    for task in cancelled:
        task.cancel()
    await asyncio.wait(cancelled)

    tokens, _ = await other
    assert [token.token_id for token in tokens] == [token.token_id for token in alone]
    await until_status(backend, lambda running, waiting: running == waiting == 0)


async def test_says_in_figures_that_a_prompt_is_too_long(backend: Backend) -> None:
    await run(backend, request(max_tokens=1))
    max_model_len = (await backend.status()).max_model_len
    prompt = TokenPrompt(token_ids=(5,) * (max_model_len + 3))

    with pytest.raises(PromptTooLong) as caught:
        await run(backend, request(prompt))

    error = caught.value
    assert (error.prompt_tokens, error.max_total_tokens) == (max_model_len + 3, max_model_len)
    assert not error.retryable


async def test_cuts_max_tokens_to_the_context_or_refuses_as_told(backend: Backend) -> None:
    await run(backend, request(max_tokens=1))
    max_model_len = (await backend.status()).max_model_len
    prompt = TokenPrompt(token_ids=(5,) * (max_model_len - 3))

    tokens, finished = await run(backend, request(prompt, max_tokens=10))

    assert len(tokens) == 3
    assert finished.reasons == (FinishReason.LENGTH,)
    with pytest.raises(PromptTooLong):
        await run(backend, request(prompt, max_tokens=10, clamp_max_tokens=False))


async def test_refuses_a_prompt_of_nothing_and_goes_on(backend: Backend) -> None:
    with pytest.raises(BackendRejected):
        await run(backend, request(TokenPrompt(token_ids=())))

    tokens, _ = await run(backend, request(max_tokens=2))
    assert len(tokens) == 2


async def test_encodes_what_it_counts(backend: Backend) -> None:
    assert isinstance(backend, Tokenizing)

    tokens = await backend.encode(PROMPT)

    assert len(tokens) == await backend.count_tokens((PROMPT,))
    assert "".join(token.text for token in tokens) == PROMPT.text
    assert [PROMPT.text[token.start : token.stop] for token in tokens] == [t.text for t in tokens]


@EVERY_KIND
async def test_closing_the_backend_ends_every_request_with_an_error(backend: Backend) -> None:
    running = backend.generate(request(ignore_eos=False))
    await anext(running)

    await backend.aclose()
    await backend.aclose()

    with pytest.raises(BackendError):
        await read(running)
    with pytest.raises(BackendUnavailable):
        await run(backend, request(max_tokens=1, ignore_eos=False))
    assert (await backend.status()).state is BackendState.DOWN


async def test_tells_its_state_without_waiting(backend: Backend) -> None:
    assert (await backend.status()).state in (BackendState.STARTING, BackendState.READY)

    await run(backend, request(max_tokens=1))

    status = await backend.status()
    assert status.state is BackendState.READY
    assert status.detail == ""
    assert status.max_model_len > 0
    assert status.max_concurrent_requests > 0
    assert status.prompt_tokens_total > 0
    assert backend.name
