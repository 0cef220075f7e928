from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from backends.base import BackendState
from backends.client import EngineClient, Patience
from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendUnavailable,
    PromptTooLong,
    StreamInterrupted,
)
from backends.messages import (
    Abort,
    Add,
    ClientMessage,
    Hello,
    Output,
    Welcome,
    WrongVersion,
    decode_from_client,
    encode,
)
from native_engine.types import EngineRequest, FinishReason, SamplingParams
from tests.backends.conftest import CountingProcess, EngineProcesses
from tests.backends.counting_engine import CountingEngine, Options
from tests.backends.waiting import until

ENDLESS = 90_000


def request(
    request_id: str = "r", *, prompt: Sequence[int] = (1,), max_tokens: int = 5
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens),
    )


async def collect(client: EngineClient, *requests: EngineRequest) -> list[Output]:
    async with aclosing(client.stream(requests)) as batches:
        return [output async for batch in batches for output in batch]


def token_ids(outputs: list[Output], request_id: str = "r") -> list[int]:
    tokens = [output.token for output in outputs if output.request_id == request_id]
    return [token.token_id for token in tokens if token is not None]


async def error_of(stream: AsyncGenerator[list[Output], None]) -> BackendError:
    """What a stream ends with, once what was pending has been read."""
    async with aclosing(stream), asyncio.timeout(10):
        try:
            while True:
                await anext(stream)
        except BackendError as error:
            return error


class Clients:
    """Clients that a test opens, closed behind it."""

    def __init__(self) -> None:
        self._opened: list[EngineClient] = []

    def open(
        self,
        socket_path: Path,
        *,
        patience: Patience | None = None,
        max_pending: int = 100_000,
    ) -> EngineClient:
        client = EngineClient(socket_path, patience=patience, max_pending=max_pending)
        self._opened.append(client)
        return client

    async def aclose(self) -> None:
        for client in self._opened:
            await client.aclose()
            assert client.num_pending == 0, "every exchange leaves the maps empty"


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    clients = Clients()
    yield clients
    await clients.aclose()


async def test_streams_every_token_in_order(engines: EngineProcesses, clients: Clients) -> None:
    client = clients.open(engines.start().socket_path)

    outputs = await collect(client, request(prompt=[7, 41], max_tokens=300))

    assert token_ids(outputs) == list(range(42, 342))
    assert [output.finish_reason for output in outputs] == [None] * 299 + [FinishReason.LENGTH]
    assert outputs[0].queue_s is not None
    assert client.num_pending == 0


async def test_streams_a_group_until_its_last_sequence_ends(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start().socket_path)

    outputs = await collect(client, request("a", max_tokens=3), request("b", max_tokens=40))

    assert len(token_ids(outputs, "a")) == 3
    assert len(token_ids(outputs, "b")) == 40


async def test_closing_a_stream_aborts_all_its_sequences(
    engines: EngineProcesses, clients: Clients
) -> None:
    """S-ABORT-N."""
    client = clients.open(engines.start(step_s=0.001).socket_path)
    for round_ in range(20):
        group = [request(f"{round_}-{child}", max_tokens=ENDLESS) for child in range(4)]
        async with aclosing(client.stream(group)) as batches:
            await anext(batches)

    await until(lambda: client.stats.num_running == client.stats.num_waiting == 0)
    assert client.num_pending == 0


async def test_aborting_one_sequence_leaves_its_siblings(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start(step_s=0.001).socket_path)
    group = [request("endless", max_tokens=ENDLESS), request("other", max_tokens=50)]

    outputs: list[Output] = []
    async with aclosing(client.stream(group)) as batches:
        async for batch in batches:
            outputs += batch
            client.abort("endless")

    assert len(token_ids(outputs, "other")) == 50
    await until(lambda: client.stats.num_running == 0)


@pytest.mark.parametrize(
    ("refused", "kind", "param"),
    [
        (request(prompt=[1] * 20), PromptTooLong, "prompt"),
        (request(prompt=[1, 999]), BackendRejected, "prompt"),
        (request(prompt=[]), BackendRejected, None),
    ],
)
async def test_says_by_type_why_a_request_was_refused(
    engines: EngineProcesses,
    clients: Clients,
    refused: EngineRequest,
    kind: type[BackendRejected],
    param: str | None,
) -> None:
    client = clients.open(engines.start(max_model_len=20, vocab_size=100).socket_path)

    error = await error_of(client.stream([refused]))

    assert type(error) is kind
    assert isinstance(error, BackendRejected)
    assert error.param == param
    assert not error.retryable
    assert token_ids(await collect(client, request())) == [2, 3, 4, 5, 6]


async def test_reports_the_figures_of_a_prompt_that_is_too_long(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start(max_model_len=20).socket_path)

    error = await error_of(client.stream([request(prompt=[1] * 30, max_tokens=7)]))

    assert isinstance(error, PromptTooLong)
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == (30, 7, 20)


async def test_queues_all_of_a_group_or_none(engines: EngineProcesses, clients: Clients) -> None:
    client = clients.open(engines.start(max_num_seqs=1, max_waiting=2, step_s=0.001).socket_path)

    error = await error_of(client.stream([request(f"{i}", max_tokens=ENDLESS) for i in range(4)]))

    assert isinstance(error, BackendOverloaded)
    assert error.retryable
    outputs = await collect(client, *[request(f"{i}") for i in range(3)])
    assert len(outputs) == 15
    assert client.stats.prompt_tokens_total == 3


async def test_refuses_an_id_that_is_running_and_leaves_its_owner_alone(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start(step_s=0.001).socket_path)
    async with aclosing(client.stream([request("same", max_tokens=100)])) as first:
        outputs = await anext(first)

        error = await error_of(client.stream([request("same")]))

        assert isinstance(error, BackendProtocolError)
        outputs += [output async for batch in first for output in batch]
    assert token_ids(outputs, "same") == list(range(2, 102))


async def test_an_engine_that_is_killed_ends_each_request_with_one_error(
    engines: EngineProcesses, clients: Clients
) -> None:
    process = engines.start(max_num_seqs=1, step_s=0.001)
    client = clients.open(process.socket_path)
    running = client.stream([request("running", max_tokens=ENDLESS)])
    await anext(running)
    waiting = asyncio.create_task(error_of(client.stream([request("waiting")])))
    await until(lambda: client.num_pending == 2)

    process.kill()

    assert isinstance(await error_of(running), StreamInterrupted)
    assert isinstance(await waiting, BackendUnavailable)
    assert client.state is BackendState.STARTING
    assert client.num_pending == 0
    process.restart()
    assert token_ids(await collect(client, request())) == [2, 3, 4, 5, 6]


async def test_an_engine_that_breaks_says_so_and_exits(
    engines: EngineProcesses, clients: Clients
) -> None:
    """E-ENGINE-STEP-ERROR: those in the step and those that wait get an error at once."""
    process = engines.start(max_num_seqs=1, step_s=0.001, breaks_on_token=500)
    client = clients.open(process.socket_path)
    running = client.stream([request("running", max_tokens=ENDLESS)])
    await anext(running)
    waiting = asyncio.create_task(error_of(client.stream([request("waiting")])))

    assert "token 500 breaks this engine" in (await error_of(running)).message
    assert isinstance(await waiting, BackendUnavailable)
    assert await asyncio.to_thread(process.wait) == 1


async def test_an_error_of_one_sequence_leaves_the_others(
    engines: EngineProcesses, clients: Clients
) -> None:
    """E-ENGINE-STEP-ERROR."""
    client = clients.open(engines.start(step_s=0.001, errors_on_token=500).socket_path)
    other = asyncio.create_task(collect(client, request("other", max_tokens=400)))

    error = await error_of(client.stream([request("failing", prompt=[490], max_tokens=100)]))

    assert isinstance(error, StreamInterrupted)
    assert error.message == "no token 500 here"
    assert token_ids(await other, "other") == list(range(2, 402))


async def test_one_clients_cancel_leaves_the_other_client_alone(
    engines: EngineProcesses, clients: Clients
) -> None:
    """S-CANCEL-CASCADE, with the same request ids on both sides."""
    process = engines.start(max_num_seqs=2, max_waiting=100, step_s=0.001)
    client, other = clients.open(process.socket_path), clients.open(process.socket_path)
    lone = token_ids(await collect(client, request("a", prompt=[3], max_tokens=200)), "a")

    steady = asyncio.create_task(collect(client, request("a", prompt=[3], max_tokens=200)))
    for _ in range(20):
        async with aclosing(other.stream([request("a", max_tokens=ENDLESS)])) as batches:
            await anext(batches)

    assert token_ids(await steady, "a") == lone


async def test_a_waiting_request_whose_reader_left_never_runs(
    engines: EngineProcesses, clients: Clients
) -> None:
    """S-DISCONNECT-QUEUED."""
    client = clients.open(engines.start(max_num_seqs=1, step_s=0.001).socket_path)
    running = client.stream([request("a", max_tokens=ENDLESS)])
    await anext(running)
    waiting = asyncio.create_task(collect(client, request("b", prompt=[1] * 7)))
    await until(lambda: client.stats.num_waiting == 1)

    waiting.cancel()
    await asyncio.wait([waiting])

    await until(lambda: client.stats.num_waiting == 0)
    assert client.stats.num_running == 1
    await running.aclose()
    await until(lambda: client.stats.num_running == 0)
    assert client.stats.prompt_tokens_total == 1


async def test_the_requests_of_a_client_that_closes_are_aborted(
    engines: EngineProcesses, clients: Clients
) -> None:
    process = engines.start(step_s=0.001)
    client, observer = clients.open(process.socket_path), clients.open(process.socket_path)
    stream = client.stream([request(max_tokens=ENDLESS)])
    await anext(stream)
    await observer.until_ready()
    await until(lambda: observer.stats.num_running == 1)

    await client.aclose()
    await client.aclose()

    assert isinstance(await error_of(stream), StreamInterrupted)
    assert isinstance(await error_of(client.stream([request()])), BackendUnavailable)
    assert client.state is BackendState.DOWN
    await until(lambda: observer.stats.num_running == 0)


async def test_a_slow_reader_gets_several_outputs_in_one_go(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start().socket_path)
    async with aclosing(client.stream([request(max_tokens=500)])) as batches:
        outputs = await anext(batches)
        await until(lambda: client.num_pending == 0)  # it has all been generated meanwhile

        rest = await anext(batches)

        assert token_ids(outputs + rest) == list(range(2, 502))
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


async def test_a_reader_that_lags_too_far_behind_loses_its_stream(
    engines: EngineProcesses, clients: Clients
) -> None:
    client = clients.open(engines.start(step_s=0.001).socket_path, max_pending=50)
    stream = client.stream([request(max_tokens=ENDLESS)])
    await anext(stream)

    await until(lambda: client.num_pending == 0)
    await until(lambda: client.stats.num_running == 0)

    error = await error_of(stream)
    assert isinstance(error, StreamInterrupted)
    assert "50 tokens too late" in error.message


async def test_waits_for_an_engine_that_is_starting(
    engines: EngineProcesses, clients: Clients, tmp_path: Path
) -> None:
    client = clients.open(tmp_path / "0.sock")
    assert client.state is BackendState.STARTING

    early = asyncio.create_task(collect(client, request()))
    engines.start()

    assert token_ids(await early) == [2, 3, 4, 5, 6]
    assert client.detail == ""


async def test_waits_for_an_engine_no_longer_than_told(clients: Clients, tmp_path: Path) -> None:
    client = clients.open(tmp_path / "none.sock", patience=Patience(start_timeout_s=0.01))

    error = await error_of(client.stream([request()]))

    assert isinstance(error, BackendUnavailable)
    assert error.message == "the engine process has not started yet; waited 0.01 s for it"


async def test_refuses_at_once_when_the_engine_is_down(
    engines: EngineProcesses, clients: Clients
) -> None:
    process = engines.start()
    client = clients.open(process.socket_path, patience=Patience(restart_timeout_s=0.0))
    await client.until_ready()

    process.kill()

    await until(lambda: client.state is BackendState.DOWN)
    assert isinstance(await error_of(client.stream([request()])), BackendUnavailable)


async def test_an_engine_that_hangs_is_given_up_and_taken_back_when_it_wakes(
    engines: EngineProcesses, clients: Clients
) -> None:
    process = engines.start(step_s=0.001)
    client = clients.open(process.socket_path, patience=Patience(silence_timeout_s=0.5))
    stream = client.stream([request(max_tokens=ENDLESS)])
    await anext(stream)

    os.kill(process.pid, signal.SIGSTOP)
    error = await error_of(stream)
    os.kill(process.pid, signal.SIGCONT)

    assert isinstance(error, StreamInterrupted)
    assert error.message == "the engine process said nothing for 0.5 s"
    assert token_ids(await collect(client, request("next")), "next") == [2, 3, 4, 5, 6]
    await until(lambda: client.stats.num_running == 0)


class ScriptedHost:
    """The other end of the socket, saying what a test tells it to."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(f"ipc://{socket_path}")
        self._client = b""

    async def hear(self) -> ClientMessage:
        async with asyncio.timeout(10):
            self._client, frame = await self._socket.recv_multipart()
        return decode_from_client(frame)

    async def say(self, frame: bytes) -> None:
        await self._socket.send_multipart([self._client, frame])

    async def welcome(self, instance: str) -> None:
        assert await self.hear() == Hello()
        engine = CountingEngine(Options())
        await self.say(encode(Welcome(engine.info, instance, engine.stats())))

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ScriptedHost]:
    host = ScriptedHost(tmp_path / "scripted.sock")
    yield host
    host.close()


async def test_says_that_the_engine_process_is_of_another_version(
    host: ScriptedHost, clients: Clients
) -> None:
    client = clients.open(host.socket_path)
    assert await host.hear() == Hello()

    await host.say(encode(WrongVersion(8)))

    await until(lambda: "speaks version 8" in client.detail)
    assert client.state is BackendState.STARTING


async def test_starts_over_with_an_engine_that_sends_what_is_no_message(
    host: ScriptedHost, clients: Clients
) -> None:
    client = clients.open(host.socket_path)
    await host.welcome("one")
    await client.until_ready()
    failing = asyncio.create_task(error_of(client.stream([request()])))
    assert isinstance(await host.hear(), Add)

    await host.say(b"no message")

    assert isinstance(await failing, BackendUnavailable)
    assert await host.hear() == Abort(("r",))
    await host.welcome("one")
    await client.until_ready()


async def test_fails_its_requests_when_another_engine_answers(
    host: ScriptedHost, clients: Clients
) -> None:
    client = clients.open(host.socket_path)
    await host.welcome("one")
    failing = asyncio.create_task(error_of(client.stream([request()])))
    assert isinstance(await host.hear(), Add)

    engine = CountingEngine(Options())
    await host.say(encode(Welcome(engine.info, "two", engine.stats())))

    assert (await failing).message == "the engine process was replaced by another"
    await until(lambda: client.state is BackendState.READY)


async def test_sees_each_life_of_the_engine_through(
    engines: EngineProcesses, clients: Clients
) -> None:
    process = engines.start()
    client = clients.open(process.socket_path)
    for _ in range(3):
        assert token_ids(await collect(client, request())) == [2, 3, 4, 5, 6]
        await _restart(process, client)


async def _restart(process: CountingProcess, client: EngineClient) -> None:
    process.kill()
    await until(lambda: client.state is BackendState.STARTING)
    process.restart()
