"""One request as far as it has come, and what it leaves behind: log line, metrics, span.

Decides nothing and sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from opentelemetry.trace import Span
from starlette.datastructures import Headers

from backends.base import Backend
from backends.types import Event, Finished, PromptLogprobs, Token
from gateway.dialects.base import Stamp, Timings
from gateway.drain import Drain
from gateway.errors import Draining, GatewayError, ServerError
from gateway.guard import Guard
from gateway.networks import Network
from gateway.policy.model import Decision, Policy
from gateway.resilience.traffic import Traffic
from gateway.stores.base import LimitStore
from gateway.telemetry import tracing
from gateway.telemetry.metrics import OTHER, Metrics
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.tracing import Tracing
from gateway.tenancy.database import Directory
from gateway.tenancy.leases import Lease, Leases
from gateway.tenancy.oidc.tokens import TokenCheck
from gateway.tenancy.tenants import Principal
from gateway.usage.store import UsageStore
from gateway.usage.writer import UsageWriter

access_log = logging.getLogger("turnout.access")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What requests are served with; built by the composition root, shared by all of them."""

    policy: Policy
    backends: Mapping[str, Backend]
    directory: Directory
    store: LimitStore
    leases: Leases
    guard: Guard
    usage: UsageWriter
    usage_store: UsageStore
    metrics: Metrics
    tracing: Tracing
    drain: Drain
    traffic: Traffic
    sleep: Callable[[float], Awaitable[None]]
    monotonic: Callable[[], float]
    wall_clock: Callable[[], float]
    body_limit_bytes: int
    body_timeout_s: float
    keep_alive_s: float
    trusted_proxies: tuple[Network, ...] = ()
    token_check: TokenCheck | None = None  # None: keys alone open anything


class Share(NamedTuple):
    """What a backend has given of an answer that another went on with."""

    backend: str
    completion_tokens: int


@dataclass(slots=True, kw_only=True)
class Call:
    """One request. Created on arrival, filled by the pipeline, recorded once at the end."""

    services: Services
    endpoint: str
    path: str
    span: Span
    stamp: Stamp
    client_request_id: str
    headers_asked_for: Mapping[str, str]
    arrived_s: float
    principal: Principal | None = None
    is_on_record: bool = False  # whether it has a place among the usage records
    stream: bool = False
    decision: Decision | None = None
    backend: str = ""
    num_attempts: int = 0
    admitted_s: float = 0.0
    first_token_s: float | None = None  # or what was asked of the prompt: anything of the answer
    prompt_tokens: int = 0
    counted_by: str = ""  # the backend that counted the prompt exactly; "" if none did
    completion_tokens: int = 0
    handed_over: list[Share] = field(default_factory=list["Share"])  # of backends that could not
    cached_tokens: int = 0
    queue_s: float = 0.0
    estimated: bool | None = None  # the usage, by the backend's word; None until it finished
    tokens_used: int = 0  # for the ledger: none until something came, then the prompt and all of it
    status: int = 200
    error: GatewayError | None = None
    client_left: bool = False
    lease: Lease | None = None
    limit_headers: tuple[tuple[str, str], ...] = ()

    def start_attempt(self, backend: str) -> None:
        """What comes from now on is this backend's; what has come stays the last one's."""
        if num_tokens := self.attempt_tokens:
            self.handed_over.append(Share(self.backend, num_tokens))
        self.backend = backend
        self.num_attempts += 1

    @property
    def attempt_tokens(self) -> int:
        """Of the answer, what the present attempt has given."""
        return self.completion_tokens - sum(one.completion_tokens for one in self.handed_over)

    def elapsed_s(self) -> float:
        """Since the request arrived."""
        return self.services.monotonic() - self.arrived_s

    def count(self, event: Event) -> None:
        """Take note of what a backend gave."""
        match event:
            case PromptLogprobs():
                self._begin()
            case Token():
                self.completion_tokens += 1
                self._begin()
            case Finished():
                self.prompt_tokens = event.usage.prompt_tokens
                self.completion_tokens = event.usage.completion_tokens
                self.cached_tokens = event.usage.cached_tokens
                self.queue_s = event.queue_s
                self.estimated = event.usage.estimated
        self.tokens_used = self.prompt_tokens + self.completion_tokens

    def _begin(self) -> None:
        if self.first_token_s is None:
            self.first_token_s = self.elapsed_s()

    def fail(self, error: GatewayError, status: int) -> None:
        """Note the error that ended the request, and the HTTP status the client saw."""
        self.error = error
        self.status = status

    def timings(self) -> Timings:
        total_s = self.elapsed_s()
        return Timings(
            total_s=total_s,
            validation_s=self.admitted_s,
            queue_s=self.queue_s,
            inference_s=max(total_s - self.admitted_s - self.queue_s, 0.0),
        )

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Our own headers of an answer, as far as they are known when it starts."""
        known = [*self.limit_headers, ("openai-processing-ms", str(round(self.elapsed_s() * 1000)))]
        if self.decision is not None:
            known.append(("x-turnout-decision", self.decision.decision_id))
        if self.backend:
            known.append(("x-turnout-backend", self.backend))
            known.append(("x-turnout-attempts", str(self.num_attempts)))
        return tuple(known)

    @property
    def outcome(self) -> str:
        """How it ended, in one word of a closed set."""
        was_streamed = self.stream and self.estimated is not None
        # who leaves on an error or on the last event of a stream has seen it
        if self.client_left and self.error is None and not was_streamed:
            return tracing.CLIENT_DISCONNECT
        if self.error is None:
            return "complete"
        if isinstance(self.error, Draining):
            return "drained"
        return "error" if isinstance(self.error, ServerError) else "rejected"

    def record(self) -> None:
        """The last word on this request: metrics, span, log line."""
        tenant = self.principal.tenant.name if self.principal else OTHER
        model = self.decision.model if self.decision and self.decision.model else OTHER
        self.services.metrics.record(
            RequestRecord(
                endpoint=self.endpoint,
                backend=self.backend,
                tenant=tenant,
                model=model,
                status=self.status,
                outcome=self.outcome,
                timings=self.timings(),
                first_token_s=self.first_token_s,
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
                cached_tokens=self.cached_tokens,
            )
        )
        self._end_span()
        access_log.info(
            "%s %s %s %d %s in=%d out=%d %.3fs",
            self.stamp.request_id,
            tenant,
            self.path,
            self.status,
            self.outcome,
            self.prompt_tokens,
            self.completion_tokens,
            self.elapsed_s(),
            extra={
                "fields": {
                    "request_id": self.stamp.request_id,
                    "client_request_id": self.client_request_id,
                    "tenant": tenant,
                    "model": model,
                    "backend": self.backend,
                    "error": type(self.error).__name__ if self.error else None,
                }
            },
        )

    def _end_span(self) -> None:
        span = self.span
        span.set_attribute(tracing.HTTP_STATUS, self.status)
        span.set_attribute(tracing.OUTCOME, self.outcome)
        span.set_attribute(tracing.INPUT_TOKENS, self.prompt_tokens)
        span.set_attribute(tracing.OUTPUT_TOKENS, self.completion_tokens)
        if self.decision is not None:
            span.set_attribute(tracing.DECISION, self.decision.decision_id)
        if self.first_token_s is not None:
            span.set_attribute(tracing.TIME_TO_FIRST_CHUNK, self.first_token_s)
        if self.outcome == tracing.CLIENT_DISCONNECT:
            tracing.fail(span, tracing.CLIENT_DISCONNECT, ours=False)
        elif self.error is not None:
            tracing.fail(span, type(self.error).__name__, ours=isinstance(self.error, ServerError))
        span.end()


def headers_asked_for(policy: Policy, headers: Headers) -> dict[str, str]:
    """Those of a request that a route asks about. One sent twice is a list (RFC 9110, 5.3)."""
    return {
        name: ", ".join(headers.getlist(name)) for name in policy.header_names if name in headers
    }
