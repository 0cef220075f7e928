"""FastChat's workers as a backend: Turnout is their controller, and generates through them.

The controller listens for as long as the backend lives, in the gateway's own process; workers
register there by themselves. A request goes to one worker, each of its choices as a call of its
own, as FastChat's API server does it. If nobody listens there the next one is asked; whether to ask
again once something was sent is the caller's business.

Closing the generator closes the sockets, which is all the abort that the protocol has. Source:
FastChat 0.2.36. Knows no client's dialect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from backends.base import BackendState, BackendStatus
from backends.errors import (
    BackendError,
    BackendProtocolError,
    BackendRejected,
    BackendUnavailable,
    DeadlineExceeded,
    StreamInterrupted,
)
from backends.spec import BackendConfigError, BackendSpec, read_options
from backends.static_batch.fastchat.controller_protocol import (
    BadJson,
    ConversationJson,
    Frame,
    parse,
)
from backends.static_batch.fastchat.controller_server import (
    ControllerOptions,
    ControllerServer,
    leave,
    share,
)
from backends.static_batch.fastchat.conversation import RenderedChat, render_chat
from backends.static_batch.fastchat.dispatch import Worker
from backends.static_batch.fastchat.latest_frames import LatestFrames
from backends.static_batch.fastchat.worker_client import WorkerGone
from backends.static_batch.fastchat.worker_params import check_supported
from backends.static_batch.fastchat.worker_plan import Plan, PlannedPrompt
from backends.types import ChatPrompt, Event, GenerationRequest, Prompt, TextPrompt, Token

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What a worker said of the model when it was first asked after it registered."""

    registered_s: float
    conversation: ConversationJson
    context_length: int | None


class FastChatBackend:
    """Implements `Backend`. Made inside a running loop."""

    def __init__(self, name: str, model: str, server: ControllerServer) -> None:
        """model: the name under which workers register it."""
        self._name = name
        self._model = model
        self._server = server
        self._controller = server.controller
        self._facts: dict[str, _Facts] = {}  # by address
        self._is_closed = False
        self._waits: set[asyncio.Timeout] = set()
        self._num_running = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def controller_address(self) -> str:
        """Where workers register."""
        return self._server.address

    async def status(self) -> BackendStatus:
        workers = self._workers()
        contexts = [
            facts.context_length
            for address, facts in self._facts.items()
            if facts.context_length is not None and any(w.address == address for w in workers)
        ]
        return BackendStatus(
            state=BackendState.READY if workers else BackendState.DOWN,
            detail="" if workers else self._why_down(),
            model_id=self._model,
            max_model_len=min(contexts, default=0),
            num_running=self._num_running,
            prompt_tokens_total=self._prompt_tokens,
            generation_tokens_total=self._generation_tokens,
            engine=f"fastchat: {len(workers)} workers at {self._server.address}",
        )

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(0.0)  # now
        await leave(self._server)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        check_supported(request, self._name)
        if not self._workers():
            raise BackendUnavailable(self._why_down())
        deadline_s = None
        if request.timeout_s < math.inf:
            deadline_s = asyncio.get_running_loop().time() + request.timeout_s
        plan: Plan | None = None
        self._num_running += 1
        try:
            plan = await self._in_time(self._plan(request), deadline_s)
            async with aclosing(self._tokens(plan, deadline_s)) as tokens:
                async for token in tokens:
                    yield token
        except TimeoutError:
            raise DeadlineExceeded("the request's time was over before its first token") from None
        except BackendError as error:
            is_lost = error.retryable and not isinstance(error, BackendProtocolError)
            if is_lost and plan is not None and plan.has_token:
                raise StreamInterrupted(error.message) from error
            raise
        finally:
            self._num_running -= 1
        finished = plan.finished()
        self._prompt_tokens += finished.usage.prompt_tokens
        self._generation_tokens += finished.usage.completion_tokens
        yield finished

    def _workers(self) -> list[Worker]:
        if self._is_closed:
            return []
        return [w for w in self._controller.workers() if self._model in w.status.model_names]

    def _why_down(self) -> str:
        if self._is_closed:
            return "the backend is closed"
        return f"no worker serves {self._model!r} at {self._name}'s controller"

    async def _in_time(self, work: Awaitable[Result], deadline_s: float | None) -> Result:
        """Raises: TimeoutError at the deadline; BackendUnavailable once the backend is closed."""
        try:
            async with asyncio.timeout_at(0.0 if self._is_closed else deadline_s) as wait:
                self._waits.add(wait)
                try:
                    result = await work
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if self._is_closed:
                raise BackendUnavailable(self._why_down()) from None
            raise
        if self._is_closed:
            raise BackendUnavailable(self._why_down())
        return result

    async def _plan(self, request: GenerationRequest) -> Plan:
        """A worker that is there, and what to ask of it.

        One that cannot be reached stays registered: FastChat's register before they listen.
        """
        gone: set[str] = set()
        while (worker := self._controller.pick(self._model, without=gone)) is not None:
            try:
                return await self._plan_for(worker, request)
            except WorkerGone:
                gone.add(worker.address)
        raise BackendUnavailable(
            f"no worker of {self._name} can be reached" if gone else self._why_down()
        )

    async def _plan_for(self, worker: Worker, request: GenerationRequest) -> Plan:
        facts = await self._facts_of(worker)
        prompts: list[PlannedPrompt] = []
        for prompt in request.prompts:
            chat = _render(prompt, facts.conversation, worker)
            counted = await self._controller.client.count_tokens(
                worker.address, self._model, chat.prompt
            )
            prompts.append(PlannedPrompt(chat=chat, prompt_tokens=counted))
        return Plan(request, self._model, worker.address, prompts, facts.context_length)

    async def _facts_of(self, worker: Worker) -> _Facts:
        """Asked for once in a registration: a worker that starts anew may be another one."""
        facts = self._facts.get(worker.address)
        if facts is None or facts.registered_s != worker.registered_s:
            client = self._controller.client
            facts = _Facts(
                registered_s=worker.registered_s,
                conversation=await client.conversation(worker.address, self._model),
                context_length=await client.context_length(worker.address, self._model),
            )
            self._facts[worker.address] = facts
        return facts

    async def _tokens(self, plan: Plan, deadline_s: float | None) -> AsyncGenerator[Token, None]:
        """The tokens of all choices as they come.

        Raises:
            TimeoutError: time was over before the first.
            BackendError: as `generate`, still to be told from one before the first token.
        """
        frames = LatestFrames()
        readers = [
            asyncio.create_task(self._read(plan.address, params, index, frames))
            for index, params in enumerate(plan.params())
        ]
        try:
            for reader in readers:
                frames.watch(reader)
            while not plan.is_done:
                try:
                    newest, ended = await self._in_time(frames.take(), deadline_s)
                except TimeoutError:
                    if not plan.has_token:
                        raise
                    return
                for token in plan.push(newest, ended):
                    yield token
                for index in plan.ended_choices:
                    readers[index].cancel()  # a stop string: the worker does not know
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, address: str, params: bytes, index: int, frames: LatestFrames) -> None:
        """Read one choice from its worker to the end."""
        async with aclosing(self._controller.client.stream(address, params)) as stream:
            async for frame in stream:
                try:
                    frames.put(index, parse(Frame, frame))
                except BadJson as error:
                    raise BackendProtocolError(f"a frame of the worker: {error}") from error
        frames.end(index)


async def open_backend(spec: BackendSpec) -> FastChatBackend:
    """Listen for workers.

    Raises:
        BackendConfigError: an option is unknown or out of range, or the port is taken.
    """
    if not spec.model:
        raise BackendConfigError(
            f"{spec.name}: engine 'fastchat' needs a model: the name under which workers register"
        )
    options = read_options(ControllerOptions, spec.options, where=spec.name)
    return FastChatBackend(spec.name, spec.model, share(options, where=spec.name))


def _render(prompt: Prompt, conversation: ConversationJson, worker: Worker) -> RenderedChat:
    """A plain prompt has no turns: what the template says ends one is not looked for, as text."""
    if isinstance(prompt, ChatPrompt):
        return render_chat(conversation, prompt, worker=worker.address)
    assert isinstance(prompt, TextPrompt)  # `check_supported`
    if not prompt.text:
        raise BackendRejected("the prompt is empty; send some text", param="prompt")
    return RenderedChat(
        prompt=prompt.text, stop=(), stop_token_ids=conversation.stop_token_ids or ()
    )
