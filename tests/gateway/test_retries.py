"""What is tried again, what goes to another backend, and who is left alone: over real backends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from backends.base import Backend
from backends.errors import (
    BackendError,
    BackendFailed,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
)
from backends.types import Event, GenerationRequest
from gateway.resilience.retry import BASE_S
from tests.gateway.serving import CHAT, POLICY, Gateway, Plain, chat, echo, gateway_over


class Failing(Plain):
    """Fails with each of these errors in turn, and then does what the other backend does."""

    def __init__(self, backend: Backend, errors: Sequence[BackendError]) -> None:
        super().__init__(backend)
        self._generate = backend.generate
        self._errors = list(errors)
        self.num_calls = 0
        self.generate = self._fail_first

    async def _fail_first(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        self.num_calls += 1
        if self._errors:
            raise self._errors.pop(0)
        async for event in self._generate(request):
            yield event


class Sleeps(list[float]):
    """Waits that take no time."""

    async def __call__(self, delay_s: float) -> None:
        self.append(delay_s)


def policy(route: str, breaker: str = "") -> str:
    text = POLICY.replace("use: first, fallback: [second]", route)
    return text.replace("first: {engine: echo}", f"first: {{engine: echo{breaker}}}")


async def serving(
    gateway: Gateway, sleeps: Sleeps, clock: Callable[[], float] | None = None
) -> Gateway:
    services = replace(gateway.services, sleep=sleeps)
    if clock is not None:
        services = replace(services, monotonic=clock)
    return replace(gateway, services=services)


def over(
    home: Path, first: Backend, route: str, breaker: str = ""
) -> AbstractAsyncContextManager[Gateway]:
    backends: dict[str, Backend] = {"first": first, "second": echo("second")}
    return gateway_over(home, backends, policy=policy(route, breaker))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failed_attempt_is_made_again_before_the_next_backend(
    tmp_path: Path, stream: bool
) -> None:
    first = Failing(echo("first"), [BackendUnavailable("no"), BackendFailed("no")])
    sleeps = Sleeps()
    async with over(tmp_path, first, "use: first, retry: {attempts: 3}") as made:
        gateway = await serving(made, sleeps)
        answer = await gateway.call(CHAT, chat(stream=stream))
    assert answer.status == 200
    assert first.num_calls == 3
    assert len(sleeps) == 2
    assert BASE_S / 2 <= sleeps[0] <= BASE_S <= sleeps[1] <= BASE_S * 2


@pytest.mark.parametrize(
    "error",
    [BackendRejected("wrong"), BackendTimeout("late"), BackendOverloaded("x", retry_after_s=60)],
)
async def test_what_a_retry_cannot_help_is_not_tried_again(
    tmp_path: Path, error: BackendError
) -> None:
    """Case R-RETRY-4XX: neither a wrong request, nor what took its time, nor a long wait."""
    first, sleeps = Failing(echo("first"), [error]), Sleeps()
    async with over(tmp_path, first, "use: first, retry: {attempts: 3}") as made:
        answer = await (await serving(made, sleeps)).call(CHAT, chat())
    assert answer.status >= 400
    assert first.num_calls == 1
    assert sleeps == []


async def test_a_backend_that_says_when_to_come_back_is_asked_then(tmp_path: Path) -> None:
    first = Failing(echo("first"), [BackendOverloaded("full", retry_after_s=3.5)])
    sleeps = Sleeps()
    async with over(tmp_path, first, "use: first, retry: {attempts: 2}") as made:
        answer = await (await serving(made, sleeps)).call(CHAT, chat())
    assert answer.status == 200
    assert sleeps == [3.5]


async def test_the_budget_bounds_what_is_tried_again(tmp_path: Path) -> None:
    """Ten percent of nine requests, which is less than one, and three that it has at first."""
    first = Failing(echo("first"), [BackendUnavailable("no")] * 1000)
    route = "use: first, fallback: [second], retry: {attempts: 5, budget: 10%}"
    async with over(tmp_path, first, route) as made:
        gateway = await serving(made, Sleeps())
        for _ in range(9):
            assert (await gateway.call(CHAT, chat())).status == 200
    assert first.num_calls == 9 + 3


async def test_an_answer_that_has_begun_is_not_begun_again(tmp_path: Path) -> None:
    backends: dict[str, Backend] = {"first": Plain(echo("first", fail_after_tokens=2))}
    backends["second"] = echo("second")
    text = policy("use: first, retry: {attempts: 3}")
    async with gateway_over(tmp_path, backends, policy=text) as made:
        sleeps = Sleeps()
        answer = await (await serving(made, sleeps)).call(CHAT, chat())
    assert answer.status == 502
    assert sleeps == []


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (BackendUnavailable("x"), "connect"),
        (BackendFailed("x"), "5xx"),
        (BackendProtocolError("x"), "5xx"),
        (BackendOverloaded("x"), "429"),
        (BackendTimeout("x"), "timeout"),
    ],
)
async def test_a_route_says_after_which_failures_it_goes_on(
    tmp_path: Path, error: BackendError, word: str
) -> None:
    words = {"connect", "5xx", "429", "timeout", "cut"}
    for listed, backend in ((words, "second"), (words - {word}, "first")):
        first = Failing(echo("first"), [error])
        route = f"use: first, fallback: [second], fail_over_on: [{', '.join(sorted(listed))}]"
        async with over(tmp_path / str(len(listed)), first, route) as gateway:
            answer = await gateway.call(CHAT, chat())
        assert answer.response_headers["x-turnout-backend"] == backend
        assert (answer.status == 200) is (backend == "second")


async def test_a_cut_may_be_the_end_of_it(tmp_path: Path) -> None:
    backends = {"first": echo("first", fail_after_tokens=2), "second": echo("second")}
    route = "use: first, fallback: [second], fail_over_on: [connect]"
    async with gateway_over(tmp_path, backends, policy=policy(route)) as gateway:
        answer = await gateway.call(CHAT, chat(stream=True))
    assert answer.events()[-1]["error"]["code"] == "upstream_error"
    assert "[DONE]" not in answer.text


async def test_a_wrong_request_goes_to_nobody_else(tmp_path: Path) -> None:
    first = Failing(echo("first"), [BackendRejected("wrong")])
    async with over(tmp_path, first, "use: first, fallback: [second]") as gateway:
        answer = await gateway.call(CHAT, chat())
    assert answer.status == 400
    assert answer.response_headers["x-turnout-attempts"] == "1"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_who_fails_in_a_row_is_left_alone_and_then_probed(tmp_path: Path) -> None:
    """Cases R-COOL-DEDUP, R-COOLDOWN-CACHE."""
    first = Failing(echo("first"), [BackendFailed("no")] * 3)
    clock = Clock()
    breaker = ", breaker: {failures: 2, cooldown: 10s}"
    async with over(tmp_path, first, "use: first, fallback: [second]", breaker) as made:
        gateway = await serving(made, Sleeps(), clock)
        for _ in range(6):
            answer = await gateway.call(CHAT, chat())
            assert answer.status == 200
            assert answer.response_headers["x-turnout-backend"] == "second"
        assert first.num_calls == 2
        clock.now_s += 12.0
        for _ in range(3):  # the probe fails: twice as long from now on
            assert (await gateway.call(CHAT, chat())).status == 200
        assert first.num_calls == 3
        clock.now_s += 24.0
        answer = await gateway.call(CHAT, chat())
    assert answer.response_headers["x-turnout-backend"] == "first"


async def test_with_all_circuits_open_the_client_is_told_when_to_come_back(tmp_path: Path) -> None:
    """Case R-ALL-COOLING."""
    first, clock = Failing(echo("first"), [BackendFailed("no")]), Clock()
    breaker = ", breaker: {failures: 1, cooldown: 30s}"
    async with over(tmp_path, first, "use: first", breaker) as made:
        gateway = await serving(made, Sleeps(), clock)
        assert (await gateway.call(CHAT, chat())).status == 502
        clock.now_s += 5.0
        answer = await gateway.call(CHAT, chat())
        assert answer.status == 503
        assert 24 <= int(answer.response_headers["retry-after"]) <= 32
        assert answer.json()["error"]["code"] == "server_is_overloaded"
        clock.now_s += 40.0
        assert (await gateway.call(CHAT, chat())).status == 200
    assert first.num_calls == 2


async def test_a_wrong_request_never_opens_a_circuit(tmp_path: Path) -> None:
    first = Failing(echo("first"), [BackendRejected("wrong")] * 5)
    breaker = ", breaker: {failures: 1}"
    async with over(tmp_path, first, "use: first", breaker) as gateway:
        statuses = [(await gateway.call(CHAT, chat())).status for _ in range(6)]
    assert statuses == [400] * 5 + [200]
