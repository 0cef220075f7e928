"""The worker over ASGI, with echoes behind it."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from backends.echo import EchoBackend, EchoOptions
from backends.static_batch.fastchat.worker import Worker
from backends.types import Event, GenerationRequest
from tests.backends.static_batch.fastchat.calling import (
    Caller,
    Frame,
    caller,
    post,
    stream,
    worker_over,
)

PROMPT = {"prompt": "to be or not", "echo": False}


class Gate:
    """Stands in for time: whoever sleeps waits until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.num_asleep = 0

    async def sleep(self, _: float) -> None:
        self.num_asleep += 1
        await self.opened.wait()


def gated(gate: Gate) -> EchoBackend:
    return EchoBackend("echo", sleep=gate.sleep)


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_streams_the_whole_text_in_every_frame() -> None:
    frames = await stream(worker_over(EchoBackend("echo")), PROMPT)

    assert [frame["text"] for frame in frames] == ["to", "to be or", *["to be or not"] * 2]
    assert [frame["finish_reason"] for frame in frames] == [None, None, None, "stop"]
    assert all(frame["error_code"] == 0 for frame in frames)


async def test_a_whole_answer_is_the_last_frame() -> None:
    worker = worker_over(EchoBackend("echo"))

    assert await post(worker, "/worker_generate", PROMPT) == (await stream(worker, PROMPT))[-1]


async def test_the_stream_interval_says_how_many_tokens_a_frame_takes() -> None:
    frames = await stream(worker_over(EchoBackend("echo"), stream_interval=3), PROMPT)

    assert [frame["text"] for frame in frames] == ["to", *["to be or not"] * 2]


async def test_usage_is_exact() -> None:
    """engine.md 4.2: completion_tokens off by one. The end of an echo is a token as well."""
    answer = await post(worker_over(EchoBackend("echo")), "/worker_generate", PROMPT)

    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


async def test_echoes_the_prompt_unless_told_not_to() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(text=" said")))

    answer = await post(worker, "/worker_generate", {"prompt": "as he"})

    assert answer["text"] == "as he said"


async def test_stops_after_the_prompt_only_and_shows_nothing_of_a_stop() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(text=" or not to be")))

    answer = await post(worker, "/worker_generate", {"prompt": "to be", "stop": "to be"})

    assert answer["text"] == "to be or not "
    assert answer["finish_reason"] == "stop"


async def test_nothing_of_a_stop_is_shown_before_it_is_known_to_be_none() -> None:
    """engine.md 4.2: `is_partial_stop` compares the whole output where it is to compare nothing."""
    worker = worker_over(EchoBackend("echo", EchoOptions(text="to be or")), stream_interval=1)
    asking = {"prompt": "x", "echo": False}

    frames = await stream(worker, {**asking, "stop": [" be not", "to be or not"]})
    assert [frame["text"] for frame in frames] == ["", "", "", "to be or", "to be or"]

    frames = await stream(worker, {**asking, "stop": ["e o", "x"]})
    assert [frame["text"] for frame in frames] == ["to", "to b", "to b", "to b"]


async def test_ends_at_max_new_tokens() -> None:
    answer = await post(
        worker_over(EchoBackend("echo")), "/worker_generate", {**PROMPT, "max_new_tokens": 2}
    )

    assert (answer["text"], answer["finish_reason"]) == ("to be", "length")


async def test_a_prompt_that_does_not_fit_is_cut_from_the_left() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(max_model_len=8)))
    asking = {"prompt": "a b c d e f g h", "max_new_tokens": 4}

    answer = await post(worker, "/worker_generate", asking)

    assert answer["text"] == " f g h f g h"  # the last 8 - 4 - 1 tokens, and their echo
    assert answer["usage"]["prompt_tokens"] == 3


async def test_an_answer_that_leaves_no_room_is_a_context_overflow() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(max_model_len=8)))

    answer = await post(worker, "/worker_generate", {**PROMPT, "max_new_tokens": 7})

    assert answer["error_code"] == 40303


async def test_log_probabilities_have_fastchats_shape() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(text=" x")))

    answer = await post(worker, "/worker_generate", {"prompt": "a b", "logprobs": 1})

    assert answer["logprobs"] == {
        "text_offset": [0, 1, 3, 5],
        "token_logprobs": [None, 0.0, 0.0, 0.0],
        "tokens": ["a", " b", " x", ""],
        "top_logprobs": [{}, {" b": 0.0}, {" x": 0.0}, {"": 0.0}],
    }


async def test_counts_tokens_tells_its_context_and_how_chats_are_written() -> None:
    worker = worker_over(EchoBackend("echo", EchoOptions(max_model_len=77)))

    counted = await post(worker, "/count_token", {"prompt": "to be or", "model": "parrot"})
    assert counted == {"count": 3, "error_code": 0}
    details = await post(worker, "/model_details", {"model": "parrot"})
    assert details == {"context_length": 77}
    conversation = (await post(worker, "/worker_get_conv_template"))["conv"]
    assert conversation["name"] == "chatml"
    assert set(conversation) == {
        *("name", "system_template", "system_message", "roles", "messages", "offset"),
        *("sep_style", "sep", "sep2", "stop_str", "stop_token_ids"),
    }


async def test_status_is_what_a_controller_chooses_by() -> None:
    status = await post(worker_over(EchoBackend("echo")), "/worker_get_status")

    assert status == {"model_names": ["parrot", "macaw"], "speed": 1, "queue_length": 0}


async def test_embeddings_are_refused_in_words() -> None:
    answer = await post(worker_over(EchoBackend("echo")), "/worker_get_embeddings", {"input": "x"})

    assert answer["error_code"] == 40301
    assert "no embeddings" in answer["text"]


@pytest.mark.parametrize("path", ["/worker_generate", "/count_token"])
async def test_a_model_it_does_not_have_is_refused(path: str) -> None:
    answer = await post(worker_over(EchoBackend("echo")), path, {"prompt": "x", "model": "crow"})

    assert answer["error_code"] == 40301
    assert "'crow'" in answer["text"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", 40001),
        ({"prompt": 1}, 40001),
        ({"prompt": "x", "top_p": 2}, 40302),
        ({"prompt": ""}, 40302),
        (b" " * 3_000_000, 40001),
    ],
)
async def test_a_bad_request_ends_in_one_error_frame(body: object, code: int) -> None:
    worker = worker_over(EchoBackend("echo"))

    (frame,) = await stream(worker, body)

    assert frame["error_code"] == code
    assert frame["text"]
    assert await post(worker, "/worker_generate", body) == frame
    assert worker.queue_length == 0


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_any_web_page_may_send_is_refused(media_type: str) -> None:
    calling = caller(worker_over(EchoBackend("echo")), "/worker_generate", PROMPT)
    calling.media_type = media_type

    await calling.run()

    assert calling.status == 415
    assert b"application/json" in calling.raw


async def test_a_request_without_a_body_needs_no_media_type() -> None:
    """FastChat's controller asks for the status so."""
    calling = caller(worker_over(EchoBackend("echo")), "/worker_get_status")
    calling.media_type = ""

    await calling.run()

    assert calling.json()["queue_length"] == 0


async def test_a_pickle_is_not_unpickled(tmp_path: Path) -> None:
    """I-PICKLE-WORKER."""
    path = tmp_path / "created"
    body = pickle.dumps(_Creates(path))
    worker = worker_over(EchoBackend("echo"))

    for route in ("/worker_generate", "/count_token"):
        assert (await post(worker, route, body))["error_code"] == 40001

    assert not path.exists()
    assert (await post(worker, "/worker_generate", PROMPT))["error_code"] == 0


class _Creates:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._path,)


async def test_requests_beyond_the_limit_wait_and_are_counted() -> None:
    gate = Gate()
    worker = worker_over(gated(gate), limit_concurrency=2)

    running = [asyncio.create_task(post(worker, "/worker_generate", PROMPT)) for _ in range(5)]
    await settled()

    assert gate.num_asleep == 2
    assert worker.status()["queue_length"] == 5
    gate.opened.set()
    assert [answer["text"] for answer in await asyncio.gather(*running)] == ["to be or not"] * 5
    assert worker.status()["queue_length"] == 0


async def test_a_long_answer_keeps_nobody_waiting_for_anything_else() -> None:
    """E-WORKER-BLOCK: every other route answers while a whole answer is being generated."""
    gate = Gate()
    worker = worker_over(gated(gate), limit_concurrency=1)
    generating = asyncio.create_task(post(worker, "/worker_generate", PROMPT))
    await settled()

    assert (await post(worker, "/worker_get_status"))["queue_length"] == 1
    assert (await post(worker, "/count_token", {"prompt": "x"}))["count"] == 1
    assert (await post(worker, "/model_details"))["context_length"] > 0
    assert (await post(worker, "/worker_get_conv_template"))["conv"]
    assert (await post(worker, "/worker_get_embeddings"))["error_code"]
    assert not generating.done()
    gate.opened.set()
    await generating


@pytest.mark.parametrize("path", ["/worker_generate", "/worker_generate_stream"])
async def test_a_client_that_leaves_aborts_the_engines_work_at_once(path: str) -> None:
    """engine.md 4.2: a dropped client ends at the next yield only, and keeps its slot."""
    gate = Gate()
    backend = gated(gate)
    worker = worker_over(backend, limit_concurrency=1)
    leaving = caller(worker, path, PROMPT)
    running = asyncio.create_task(leaving.run())
    await settled()
    assert backend.aborted == []

    leaving.leave.set()
    await running

    assert backend.aborted == ["fastchat-0"]
    assert worker.queue_length == 0
    gate.opened.set()
    assert (await post(worker, path.removesuffix("_stream"), PROMPT))["error_code"] == 0


async def test_a_client_that_stopped_reading_and_leaves_aborts_as_well() -> None:
    backend = EchoBackend("echo")
    worker = worker_over(backend, limit_concurrency=1)
    leaving = caller(worker, "/worker_generate_stream", PROMPT)
    leaving.stalls = True
    running = asyncio.create_task(leaving.run())
    await settled()
    assert backend.aborted == []

    leaving.leave.set()
    await running

    assert backend.aborted == ["fastchat-0"]
    assert worker.queue_length == 0


async def test_a_client_that_leaves_while_it_waits_gives_its_place_up() -> None:
    gate = Gate()
    backend = gated(gate)
    worker = worker_over(backend, limit_concurrency=1)
    first = asyncio.create_task(post(worker, "/worker_generate", PROMPT))
    leaving = caller(worker, "/worker_generate_stream", PROMPT)
    waiting = asyncio.create_task(leaving.run())
    await settled()
    assert worker.queue_length == 2

    leaving.leave.set()
    await waiting

    assert worker.queue_length == 1
    assert gate.num_asleep == 1
    gate.opened.set()
    assert (await first)["error_code"] == 0


@pytest.mark.parametrize("path", ["/worker_generate", "/worker_generate_stream"])
async def test_a_slot_comes_back_wherever_a_request_is_cancelled(path: str) -> None:
    """engine.md 6.16, FastChat issues 3328 and 3389: cancelled at each await in turn."""
    worker = worker_over(EchoBackend("echo"), limit_concurrency=1)
    num_turns, is_cancelled = 0, True
    while is_cancelled:
        calling = asyncio.create_task(caller(worker, path, PROMPT).run())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        is_cancelled = calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)

        assert worker.queue_length == 0
        assert (await post(worker, "/worker_generate", PROMPT))["error_code"] == 0
        num_turns += 1
    assert num_turns > 5


@pytest.mark.parametrize("seed", range(20))
async def test_no_mix_of_clients_that_stay_and_leave_loses_a_slot(seed: int) -> None:
    """engine.md 6.16: the queue grows until the worker is stuck."""
    rng = random.Random(seed)
    backend = EchoBackend("echo")
    worker = worker_over(backend, limit_concurrency=3)

    async def come_and_go(calling: Caller, num_turns: int) -> None:
        running = asyncio.create_task(calling.run())
        for _ in range(num_turns):
            await asyncio.sleep(0)
            assert (await backend.status()).num_running <= 3
        calling.leave.set()
        await running

    paths = ["/worker_generate", "/worker_generate_stream"]
    await asyncio.gather(
        *(
            come_and_go(caller(worker, rng.choice(paths), PROMPT), rng.randrange(60))
            for _ in range(30)
        )
    )

    assert backend.aborted
    assert worker.queue_length == 0
    assert (await backend.status()).num_running == 0
    running = (post(worker, "/worker_generate", PROMPT) for _ in range(4))
    assert all(answer["error_code"] == 0 for answer in await asyncio.gather(*running))


@pytest.mark.parametrize(
    ("options", "code", "num_frames"),
    [
        (EchoOptions(fail_before=True), 50005, 1),
        (EchoOptions(fail_after_tokens=2), 50001, 2),
        (EchoOptions(max_concurrent_requests=0), 42903, 1),
    ],
)
async def test_a_slot_comes_back_when_the_engine_fails(
    options: EchoOptions, code: int, num_frames: int
) -> None:
    """engine.md 6.16, FastChat issue 3328: a slot is not released on an exception."""
    worker = worker_over(EchoBackend("echo", options), limit_concurrency=1)

    for _ in range(3):
        frames = await stream(worker, PROMPT)
        assert len(frames) == num_frames
        assert frames[-1]["error_code"] == code
        assert worker.queue_length == 0


class BrokenBackend(EchoBackend):
    """Has a bug."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        raise ZeroDivisionError(request.request_id)
        yield


async def test_a_bug_ends_one_request_and_tells_no_secrets() -> None:
    worker = worker_over(BrokenBackend("broken"), limit_concurrency=1)

    for _ in range(2):
        assert await stream(worker, PROMPT) == [
            {"text": "the worker failed; see its log", "error_code": 50001}
        ]
    assert worker.queue_length == 0


async def test_seeds_are_drawn_for_each_request_that_brings_none() -> None:
    """engine.md 4.2: a global seed is shared by concurrent requests."""
    seeds = iter(range(100))
    backend = RecordingBackend("echo")
    worker = worker_over(backend, draw_seed=lambda: next(seeds))

    asking: list[Frame] = [PROMPT, {**PROMPT, "seed": 50}, PROMPT]
    await asyncio.gather(*(post(worker, "/worker_generate", one) for one in asking))

    assert sorted(backend.seeds) == [0, 1, 50]


class RecordingBackend(EchoBackend):
    """Remembers what it was asked."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seeds: list[int] = []

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.seeds.append(request.sampling.seed)
        return super().generate(request)


async def test_is_ready_as_long_as_its_backend_is() -> None:
    backend = EchoBackend("echo")
    worker: Worker = worker_over(backend)
    assert await worker.is_ready()

    await backend.aclose()

    assert not await worker.is_ready()
    assert (await post(worker, "/worker_get_status"))["queue_length"] == 0
