"""From a decision to the events of one answer: backends are tried in turn until it is whole.

One that fails in the middle of it is followed by one that goes on where it stopped
(`resumption.py`): the client has one answer, and each of its tokens once.

Knows no wire format and no tenant.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    DeadlineExceeded,
)
from backends.types import Event, Finished, GenerationRequest
from gateway.bill import spend_of_attempt
from gateway.call import Call, Services
from gateway.errors import (
    Draining,
    GatewayError,
    InvalidRequest,
    Overloaded,
    RateLimited,
    UpstreamTimeout,
)
from gateway.policy.model import Decision, Timeouts
from gateway.resilience.breaker import End
from gateway.resilience.failures import FAILURES, Failure, is_backends_fault, kind_of
from gateway.resilience.retry import retrying
from gateway.resilience.traffic import Ticket
from gateway.resumption import AnswerSoFar
from gateway.stores.base import Spend
from gateway.telemetry import tracing
from gateway.tenancy.limits import backend_claims

log = logging.getLogger("turnout.attempts")

MARGIN_SHARE, MAX_MARGIN_S = 0.1, 5.0
"""How much earlier than ours a backend's deadline is: of the time left, and at most. An engine
looks at its clock between two steps, and then still has to tell us. A step of SmolLM2-135M took
0.6 s at most with 32 sequences, and 4 s at the end of a prompt of 6,000 tokens, on two busy cores.
"""

CUT_OFF = "This server shut down before the answer was complete."

MIN_TIMEOUT_S = 0.001  # of a request whose time ran out since it was looked at

Events = AsyncGenerator[Event, None]


class PassedOver(BackendOverloaded):
    """A backend that was not asked: another is, whatever `fail_over_on` says."""


class AllowanceUsedUp(PassedOver):
    """Too little is left of our own allowance at a backend.

    `retry_after_s` is infinite if the request needs more than all of it; the cause says how much.
    """


class CircuitOpen(PassedOver):
    """A backend has failed so often that it is left alone for a while."""


async def attempts(
    call: Call, request: GenerationRequest, decision: Decision, most: Spend
) -> Events:
    """The events of one answer, of as many backends as it takes, while there is time left.

    Raises:
        BackendError: what cut the answer, if nobody can go on with it. If there was none: the last
            failure, or if no backend was asked, the shortest wait.
        GatewayError: likewise; or it is larger than every allowance.
    """
    so_far = AnswerSoFar(request)
    failures: list[Failure] = []
    cut: Failure | None = None  # what ended the last attempt that gave anything
    for name in decision.attempts:
        backend = call.services.backends[name]
        rest = so_far.rest_for(backend)
        if _left_s(call, decision) <= 0.0:
            break
        if rest is None:
            continue
        so_far.begin(backend)
        num_before = so_far.num_tokens
        try:
            async with aclosing(_tries(call, name, rest, decision, most)) as events:
                async for event in events:
                    call.count(event)
                    so_far.add(event)
                    yield event
            return
        except FAILURES as error:
            has_begun = so_far.num_tokens > num_before
            is_over = not _fails_over(error, decision, has_begun=has_begun)
            if is_over and (has_begun or cut is None):
                raise
            if has_begun:
                cut = error
            log.warning("attempt on %s failed: %s", name, error.message)
            failures.append(error)
    raise cut or _worth_telling(failures)


def _fails_over(error: Failure, decision: Decision, *, has_begun: bool) -> bool:
    """Whether the route goes on to the next backend after such a failure."""
    if isinstance(error, PassedOver):
        return True
    return kind_of(error, has_begun=has_begun) in decision.fail_over_on


async def _tries(
    call: Call, name: str, request: GenerationRequest, decision: Decision, most: Spend
) -> Events:
    """One backend's events. While nothing has come, it may be asked more than once."""
    services, retry = call.services, decision.retry
    if retry.num_attempts == 1:
        async with aclosing(_try(call, name, request, decision, most)) as events:
            async for event in events:
                yield event
        return
    has_begun = False
    budget = services.traffic.budget(services.policy.backends[name])
    budget.deposit(retry.budget)
    tries = retrying(
        retry,
        budget,
        left_s=_left_s(call, decision),
        has_begun=lambda: has_begun,
        sleep=services.sleep,
        seed=call.stamp.seed,
    )
    async for one in tries:
        with one:
            async with aclosing(_try(call, name, request, decision, most)) as events:
                async for event in events:
                    has_begun = True
                    yield event


async def _try(
    call: Call, name: str, request: GenerationRequest, decision: Decision, most: Spend
) -> Events:
    """One attempt, within our allowance there."""
    call.start_attempt(name)
    left_s = max(_left_s(call, decision), MIN_TIMEOUT_S)
    timed = replace(request, timeout_s=left_s - min(left_s * MARGIN_SHARE, MAX_MARGIN_S))
    async with (
        _allowance(call, name, most),
        aclosing(_attempt(call, name, timed, timeouts_of(decision))) as events,
    ):
        async for event in events:
            yield event


def _left_s(call: Call, decision: Decision) -> float:
    return timeouts_of(decision).total_s - call.elapsed_s()


def _worth_telling(failures: list[Failure]) -> BackendError | GatewayError:
    """What becomes of a request that nobody answered."""
    if not failures:
        return DeadlineExceeded("the request's time was over before an attempt")
    passed_over = [one for one in failures if isinstance(one, PassedOver)]
    if len(passed_over) < len(failures):
        return [one for one in failures if not isinstance(one, PassedOver)][-1]
    soonest = min(passed_over, key=lambda one: one.retry_after_s)
    cause = soonest.__cause__
    return cause if isinstance(cause, InvalidRequest) else soonest


@asynccontextmanager
async def _allowance(call: Call, name: str, most: Spend) -> AsyncGenerator[None]:
    """Hold what an attempt takes of our own allowance at a backend, if that is limited.

    It is a lease of its own, settled with what this attempt used. One that goes on with an answer
    has all of the prompt to compute, and what was drawn before it: that is counted as part of it.

    Raises:
        AllowanceUsedUp: too little is left, or nobody can tell, for the store fails. That is no
            client's fault: the next one is tried.
    """
    services = call.services
    backend = services.policy.backends[name]
    if not backend.limits:
        yield
        return
    claims = backend_claims(backend, most, services.wall_clock())
    try:
        lease = await services.leases.reserve(
            f"{call.stamp.request_id}/{call.num_attempts}", claims
        )
    except (RateLimited, InvalidRequest, Overloaded) as error:
        # It reads well for a client whose limit it is, which it is not.
        is_known = not isinstance(error, Overloaded)
        outcome = "allowance_used_up" if is_known else "allowance_unknown"
        services.metrics.attempts.labels(name, outcome).inc()
        how = "used up" if is_known else "not known at the moment"
        wait_s = math.inf if isinstance(error, InvalidRequest) else error.retry_after_s
        message = f"the allowance at backend '{name}' is {how}"
        raise AllowanceUsedUp(message, retry_after_s=wait_s) from error
    try:
        yield
    finally:
        lease.spend = spend_of_attempt(call)
        await services.leases.end(lease)


async def _attempt(call: Call, name: str, request: GenerationRequest, timeouts: Timeouts) -> Events:
    """One backend's events under the route's timeouts, with a span of its own."""
    services = call.services
    ticket = _ticket(services, name)
    span = services.tracing.attempt_span(call.span, call.endpoint, name, request.model)
    outcome, end = tracing.CLIENT_DISCONNECT, End.SILENTLY
    last: Event | None = None
    try:
        async with aclosing(services.backends[name].generate(request)) as events:
            async for event in _in_time(call, name, events, timeouts):
                if last is None:
                    services.traffic.note_first_token(ticket, services.monotonic())
                last = event
                yield event
        if not isinstance(last, Finished):
            raise BackendProtocolError(f"backend {name} ended without finishing")
        outcome, end = "complete", End.WELL
    except (BackendError, GatewayError) as error:
        is_timeout = isinstance(error, BackendTimeout | UpstreamTimeout)
        outcome = "timeout" if is_timeout else type(error).__name__
        if isinstance(error, FAILURES) and is_backends_fault(error, has_begun=last is not None):
            end = End.BADLY
        raise
    finally:
        luck = (call.stamp.seed >> 11) / 2**53
        services.traffic.end(ticket, end, services.monotonic(), luck)
        services.metrics.attempts.labels(name, outcome).inc()
        if outcome != "complete":
            tracing.fail(span, outcome, ours=outcome != tracing.CLIENT_DISCONNECT)
        span.set_attribute(tracing.OUTPUT_TOKENS, call.completion_tokens)
        span.end()


def _ticket(services: Services, name: str) -> Ticket:
    """Leave to ask a backend.

    Raises:
        CircuitOpen: it was left alone in the meantime, or somebody else is its probe.
    """
    config, now_s = services.policy.backends[name], services.monotonic()
    ticket = services.traffic.begin(config, now_s)
    if ticket is None:
        services.metrics.attempts.labels(name, "circuit_open").inc()
        wait_s = services.traffic.wait_s([config], now_s)
        raise CircuitOpen(f"backend {name} failed of late; try again later", retry_after_s=wait_s)
    return ticket


async def _in_time(call: Call, name: str, events: Events, timeouts: Timeouts) -> Events:
    """The events, each within the time that the phase, the request and the server have."""
    services = call.services
    deadline_s = call.arrived_s + timeouts.total_s
    limit_s, has_begun = timeouts.first_token_s, False
    while True:
        now_s = services.monotonic()
        left_s = min(limit_s, deadline_s - now_s, services.drain.remaining_s(now_s))
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise _timeout_error(services, name, limit_s, has_begun=has_begun) from error
        yield event
        limit_s, has_begun = timeouts.between_tokens_s, True


def _timeout_error(
    services: Services, name: str, limit_s: float, *, has_begun: bool
) -> BackendError | GatewayError:
    if services.drain.is_draining:
        return Draining(CUT_OFF)
    if has_begun:
        return UpstreamTimeout(f"backend {name} sent nothing more in time")
    return BackendTimeout(f"backend {name} sent no first token within {limit_s:g} s")


def timeouts_of(decision: Decision) -> Timeouts:
    """Of a decision that goes somewhere."""
    assert decision.timeouts is not None  # every decision that is no rejection has them
    return decision.timeouts
