"""The life of one generation request, top to bottom. Start reading at `GenerationEndpoint.serve`.

    bytes -> who asks -> what is asked -> where it goes -> a lease -> attempts -> bytes

Every request ends exactly once: with a whole answer, a closed stream, an error, or because its
client left; in every case the lease is settled and the span ended. Knows no wire format (the
dialect does), no engine (the backend does), no rule (the policy does), no counter (the store does).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from backends.base import Tokenizing
from backends.errors import BackendError
from backends.types import UNLIMITED_TOKENS, GenerationRequest
from gateway.attempts import CUT_OFF, Events, attempts, timeouts_of
from gateway.authenticate import authenticate
from gateway.bill import dearest_micros, spend_of, usage_record
from gateway.body import ClientGone, check_media_type, read_body
from gateway.call import Call, Services, headers_asked_for
from gateway.dialects.base import Dialect, Exchange, Stamp, StreamEncoder
from gateway.errors import (
    ContextLengthExceeded,
    Draining,
    GatewayError,
    InternalError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    from_backend,
)
from gateway.estimate import estimate_tokens
from gateway.policy.decide import decide, reachable_backends
from gateway.policy.match import Facts
from gateway.policy.model import Decision, RejectReason
from gateway.responses import EventStream, WatchedSend, run_while_connected, send_reply
from gateway.session import session_of
from gateway.stores.base import Spend
from gateway.tenancy.key_rules import KeyScope
from gateway.tenancy.limits import claims_for, rate_headers
from gateway.tenancy.tenants import Principal
from gateway.usage.record import to_bytes

log = logging.getLogger("turnout.pipeline")

HOLD_STATUS_S = 0.15
"""With nothing to fall back on, a stream's headers go out at the latest this long after admission.
"""


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """An ASGI application for one path: the dialect it speaks, and what policies call it."""

    name: str
    path: str
    dialect: Dialect = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services: Services = scope["state"]["services"]
        headers = Headers(scope=scope)
        call = Call(
            services=services,
            endpoint=self.name,
            path=self.path,
            span=services.tracing.server_span("POST", self.path, headers),
            stamp=Stamp(
                request_id=secrets.token_hex(12),
                created_s=int(services.wall_clock()),
                seed=secrets.randbits(64),
            ),
            client_request_id=scope.get("request_id", ""),
            headers_asked_for=headers_asked_for(services.policy, headers),
            arrived_s=services.monotonic(),
        )
        services.drain.num_active += 1
        try:
            await self.serve(call, scope, receive, WatchedSend(send))
        finally:
            try:
                if call.principal is not None and call.is_on_record:
                    await _settle(call, call.principal)
                call.record()
            except Exception:  # bookkeeping's door: the answer is out, and was right
                log.exception("request %s was not recorded", call.stamp.request_id)
            finally:
                services.drain.num_active -= 1

    async def serve(self, call: Call, scope: Scope, receive: Receive, send: WatchedSend) -> None:
        """One request, from its headers to its last byte."""
        services = call.services
        headers = Headers(scope=scope)
        try:
            if services.drain.is_draining:
                raise Draining("This server is shutting down; send the request again.")
            call.principal = principal = await authenticate(services, scope, KeyScope.INFERENCE)
            services.usage.begin()
            call.is_on_record = True
            check_media_type(headers)
            body = await read_body(
                headers,
                receive,
                limit_bytes=services.body_limit_bytes,
                timeout_s=services.body_timeout_s,
            )
            exchange = self.dialect.parse(body, call.stamp)
            call.stream = exchange.request.stream
            if unknown := exchange.request.extra:
                names = ", ".join(map(repr, unknown))
                log.info("request %s: nothing reads %.200s", call.stamp.request_id, names)
            work = self._answer(call, principal, exchange, send)
            call.client_left = not await run_while_connected(work, receive, send)
        except ClientGone:
            call.client_left = True
        except GatewayError as error:
            await self._refuse(call, error, send)
        except Exception:  # the request's door: a bug of ours ends one request, not the process
            log.exception("request %s failed", call.stamp.request_id)
            await self._refuse(call, InternalError(), send)
        except asyncio.CancelledError:  # by the server, which does not wait any more
            if not send.is_complete:
                call.fail(Draining(CUT_OFF), call.status)
            raise

    async def _answer(
        self, call: Call, principal: Principal, exchange: Exchange, send: Send
    ) -> None:
        """Decide where the request goes, take the lease that `_settle` ends, send the answer."""
        services = call.services
        try:
            decision, prompt_tokens = await _route(call, principal, exchange.request)
            request = replace(
                exchange.request,
                model=decision.model,
                tenant=principal.tenant.tenant_id,
                priority=decision.priority,
                weight=decision.weight,
            )
            most = await _most(services, request, decision, prompt_tokens)
            claims = claims_for(decision.limits, principal, most, services.wall_clock())
            call.lease = await services.leases.reserve(call.stamp.request_id, claims)
            call.limit_headers = rate_headers(call.lease.states)
            call.admitted_s = call.elapsed_s()
            call.prompt_tokens = prompt_tokens
            async with aclosing(attempts(call, request, decision, most)) as events:
                if request.stream:
                    await _send_stream(call, exchange, decision, events, send)
                else:
                    collected = [event async for event in events]
                    reply = exchange.collect(decision.model, collected, call.timings())
                    await send_reply(send, reply, call.headers())
        except RateLimited as error:
            services.metrics.limit_rejections.labels(
                principal.tenant.name, error.limit, error.dimension
            ).inc()
            await self._refuse(call, error, send)
        except (GatewayError, BackendError) as error:
            await self._refuse(call, _as_gateway_error(error), send)

    async def _refuse(self, call: Call, error: GatewayError, send: Send) -> None:
        """Answer with an error; nothing has been sent yet."""
        reply = self.dialect.error(error)
        call.fail(error, reply.status)
        closing = (("connection", "close"),) if isinstance(error, Draining) else ()
        await send_reply(send, reply, (*call.headers(), *closing))


async def _settle(call: Call, principal: Principal) -> None:
    """End the lease, if there is one, and leave the record of the request: in the same step."""
    usage = call.services.usage
    record = usage_record(call, principal)
    try:
        if call.lease is None:
            usage.put(record)
            return
        call.lease.spend, call.lease.record = spend_of(call), to_bytes(record)
        await call.services.leases.end(call.lease, not_kept=lambda: usage.put(record))
    finally:
        usage.end()


async def _route(
    call: Call, principal: Principal, request: GenerationRequest
) -> tuple[Decision, int]:
    """Where it goes, and how many tokens its prompts have: exactly, if a tokenizer is at hand."""
    services = call.services
    policy = services.policy
    states = {name: (await backend.status()).state for name, backend in services.backends.items()}
    facts = Facts(
        tenant=principal.tenant.name,
        plan=principal.tenant.plan,
        model=request.model,
        endpoint=call.endpoint,
        stream=request.stream,
        headers=call.headers_asked_for,
        tags=request.tags,
        max_tokens=None if request.max_tokens == UNLIMITED_TOKENS else request.max_tokens,
        num_choices=request.num_choices,
        time_s=services.wall_clock(),
        session=session_of(request, call.headers_asked_for) if policy.has_affinity else "",
        key_models=principal.rules.models,
    )
    prompt_tokens = await _count_tokens(call, facts, request)
    facts = replace(facts, prompt_tokens=prompt_tokens)
    health = services.traffic.health(policy.backends, states, services.monotonic())
    decision = decide(policy, facts, health, seed=call.stamp.seed)
    if decision.reject is not None:
        raise rejection(services, decision, request.model)
    call.decision = decision
    return decision, estimate_tokens(request.prompts) if prompt_tokens is None else prompt_tokens


async def _count_tokens(call: Call, facts: Facts, request: GenerationRequest) -> int | None:
    """The exact number of prompt tokens, by the first backend on the way that has a tokenizer."""
    for name in reachable_backends(call.services.policy, facts):
        backend = call.services.backends[name]
        if isinstance(backend, Tokenizing):
            call.counted_by = name
            return await backend.count_tokens(request.prompts)
    return None


def rejection(services: Services, decision: Decision, model: str) -> GatewayError:
    """What the client is told of a decision that sends its request nowhere."""
    assert decision.reject is not None  # that is what it is asked for
    match decision.reject.reason:
        case RejectReason.NO_BACKEND:
            open_until_s = services.traffic.wait_s(
                (services.policy.backends[name] for name, _ in decision.rejected_candidates),
                services.monotonic(),
            )
            return Overloaded(decision.reject.message, retry_after_s=max(open_until_s, 1.0))
        case _:  # a tenant is not told whether a model exists that it may not use
            return ModelNotFound(model)


async def _most(
    services: Services, request: GenerationRequest, decision: Decision, prompt_tokens: int
) -> Spend:
    """The prompts, and the most that may come: what was asked for, cut to the context.

    Raises:
        ContextLengthExceeded: the prompt does not fit, which no limit should be blamed for.
    """
    backend = services.backends[decision.attempts[0]]
    context = (await backend.status()).max_model_len
    is_exact = isinstance(backend, Tokenizing)  # a guess refuses nobody
    if is_exact and context and len(request.prompts) == 1 and prompt_tokens >= context:
        raise ContextLengthExceeded(
            prompt_tokens=prompt_tokens, max_tokens=0, max_total_tokens=context
        )
    wanted = request.max_tokens
    if wanted == UNLIMITED_TOKENS:
        wanted = services.policy.estimate_output_tokens
    output_tokens = min(wanted, context or wanted) * request.num_choices
    return Spend(
        input_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost_micros=dearest_micros(services.policy, decision, prompt_tokens, output_tokens),
    )


async def _send_stream(
    call: Call, exchange: Exchange, decision: Decision, events: Events, send: Send
) -> None:
    """Events out as they come. Before the first byte an error still gets a status of its own."""
    encoder = exchange.stream(decision.model)
    has_fallback = len(decision.attempts) > 1
    stream = EventStream(
        send,
        (*exchange.stream_headers, *call.headers()),
        hold_s=timeouts_of(decision).first_token_s if has_fallback else HOLD_STATUS_S,
        keep_alive_s=call.services.keep_alive_s,
    )
    async with asyncio.TaskGroup() as tasks:
        keeping_alive = tasks.create_task(stream.keep_alive())
        try:
            failure = await _pump(events, encoder, stream)
        finally:
            keeping_alive.cancel()
    if failure is not None:
        if not stream.has_started:
            raise failure
        call.fail(failure, 200)
        await stream.write(encoder.fail(failure))
    await stream.end()


async def _pump(events: Events, encoder: StreamEncoder, stream: EventStream) -> GatewayError | None:
    """Encode and send every event; what ended them early, if anything did."""
    try:
        async for event in events:
            await stream.write(encoder.feed(event))
    except (GatewayError, BackendError) as error:
        return _as_gateway_error(error)
    except Exception:  # the request's door, inside a stream
        log.exception("a stream failed")
        return InternalError()
    return None


def _as_gateway_error(error: GatewayError | BackendError) -> GatewayError:
    return from_backend(error) if isinstance(error, BackendError) else error
