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

Events = AsyncGenerator[Event, None]

Failure = BackendError | UpstreamTimeout
"""What another attempt may make good."""


class AllowanceUsedUp(BackendOverloaded):
    """Too little is left of our own allowance at a backend.

    `retry_after_s` is infinite if the request needs more than all of it; the cause says how much.
    """


async def attempts(
    call: Call, request: GenerationRequest, decision: Decision, most: Spend
) -> Events:
    """The events of one answer, of as many backends as it takes, while there is time left.

    Raises:
        BackendError: what cut the answer, if nobody can go on with it. If there was none: the last
            failure, or if all allowances were used up, the shortest wait.
        GatewayError: likewise; or it is larger than every allowance.
    """
    timeouts = timeouts_of(decision)
    so_far = AnswerSoFar(request)
    failures: list[Failure] = []
    cut: Failure | None = None  # what ended the last attempt that gave anything
    for name in decision.attempts:
        backend = call.services.backends[name]
        left_s = timeouts.total_s - call.elapsed_s()
        rest = so_far.rest_for(backend)
        if left_s <= 0.0:
            break
        if rest is None:
            continue
        call.start_attempt(name)
        so_far.begin(backend)
        num_before = so_far.num_tokens
        timed = replace(rest, timeout_s=left_s - min(left_s * MARGIN_SHARE, MAX_MARGIN_S))
        try:
            async with (
                _allowance(call, name, most),
                aclosing(_attempt(call, name, timed, timeouts)) as events,
            ):
                async for event in events:
                    call.count(event)
                    so_far.add(event)
                    yield event
            return
        except (BackendError, UpstreamTimeout) as error:
            if so_far.num_tokens > num_before:
                cut = error
            elif cut is None and not (isinstance(error, BackendError) and error.retryable):
                raise
            log.warning("attempt on %s failed: %s", name, error.message)
            failures.append(error)
    raise cut or _worth_telling(failures)


def _worth_telling(failures: list[Failure]) -> BackendError | GatewayError:
    """What becomes of a request that nobody answered."""
    if not failures:
        return DeadlineExceeded("the request's time was over before an attempt")
    used_up = [one for one in failures if isinstance(one, AllowanceUsedUp)]
    if len(used_up) < len(failures):
        return [one for one in failures if not isinstance(one, AllowanceUsedUp)][-1]
    soonest = min(used_up, key=lambda one: one.retry_after_s)
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
    span = services.tracing.attempt_span(call.span, call.endpoint, name, request.model)
    outcome = tracing.CLIENT_DISCONNECT
    deadline_s = call.arrived_s + timeouts.total_s
    limit_s = timeouts.first_token_s
    last: Event | None = None
    try:
        async with aclosing(services.backends[name].generate(request)) as events:
            while True:
                now_s = services.monotonic()
                left_s = min(limit_s, deadline_s - now_s, services.drain.remaining_s(now_s))
                try:
                    async with asyncio.timeout(max(left_s, 0.0)):
                        event = await anext(events)
                except StopAsyncIteration:
                    break
                last = event
                yield event
                limit_s = timeouts.between_tokens_s
        if not isinstance(last, Finished):
            raise BackendProtocolError(f"backend {name} ended without finishing")
        outcome = "complete"
    except TimeoutError as error:
        outcome = "timeout"
        raise _timeout_error(services, name, limit_s, has_begun=last is not None) from error
    except BackendError as error:
        outcome = type(error).__name__
        raise
    finally:
        services.metrics.attempts.labels(name, outcome).inc()
        if outcome != "complete":
            tracing.fail(span, outcome, ours=outcome != tracing.CLIENT_DISCONNECT)
        span.set_attribute(tracing.OUTPUT_TOKENS, call.completion_tokens)
        span.end()


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
