"""Controllers of one process: who shares which, with what options, and how they end."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator

import pytest

from backends.base import BackendState
from backends.errors import (
    BackendUnavailable,
    StreamInterrupted,
)
from backends.spec import BackendConfigError, BackendSpec, OptionValue
from backends.static_batch.fastchat.remote import FastChatBackend, open_backend
from tests.backends.static_batch.fastchat.canned_worker import (
    CannedWorker,
    Params,
    frame,
)
from tests.backends.static_batch.fastchat.remote_requests import (
    fails_with,
    free_port,
    request,
    run,
    silent_after,
    spec,
    text,
)


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
