"""The gateway in this process, over real parts: echo backends, a database in a temporary directory.

`Caller` speaks ASGI to it by hand, so that a test decides when the client leaves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import ASGIApp

from backends.base import Backend
from backends.echo import EchoBackend, EchoOptions
from gateway.app import assemble
from gateway.call import Services
from gateway.config import OidcSettings
from gateway.drain import Drain
from gateway.guard import Guard
from gateway.networks import Network
from gateway.policy.load import parse
from gateway.resilience.traffic import Traffic
from gateway.stores.base import LimitStore
from gateway.stores.memory import MemoryStore
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.tracing import Tracing
from gateway.tenancy.database import Directory
from gateway.tenancy.leases import Leases
from gateway.tenancy.oidc.tokens import open_token_check
from gateway.usage.carrier import UsageCarrier
from gateway.usage.record import UsageRecord
from gateway.usage.store import Selection, UsageStore
from gateway.usage.writer import UsageWriter

CHAT = "/v1/chat/completions"

POLICY = """\
version: 1
backends:
  first: {engine: echo}
  second: {engine: echo}
models:
  echo: {aliases: [parrot]}
  hidden: {}
limits:
  free: {requests: 10/min, tokens: 1k/min, concurrent: 2}
plans:
  demo: {limits: [free], models: [echo]}
routes:
  - {name: all, use: first, fallback: [second]}
defaults:
  model: echo
  estimate_output: 100
  timeout: {first_token: 5s, between_tokens: 2s, total: 20s}
"""


UNGUARDED = {
    "auth_failures_per_min": 0,
    "admin_auth_failures_per_min": 0,
    "admin_requests_per_min": 0,
}
"""For tests that count something else."""


def chat(text: str = "one two three", **fields: object) -> dict[str, object]:
    return {"model": "echo", "messages": [{"role": "user", "content": text}], **fields}


class Plain:
    """A backend that does no more than it must: it counts no prompts and resumes no answers."""

    def __init__(self, backend: Backend) -> None:
        self.name = backend.name
        self.generate = backend.generate
        self.status = backend.status
        self.aclose = backend.aclose


def echo(name: str, **options: Any) -> EchoBackend:
    return EchoBackend(name, EchoOptions(**options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """An assembled gateway and what a test looks into."""

    services: Services
    store: LimitStore
    usage: UsageStore
    carrier: UsageCarrier
    spans: InMemorySpanExporter
    key: str

    def caller(
        self,
        path: str,
        body: object,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
    ) -> Caller:
        """A request, not sent yet. `body` is JSON unless it is bytes."""
        given = {
            "authorization": f"Bearer {self.key}",
            "content-type": "application/json",
            **(headers or {}),
        }
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Caller(self, method, path, given, raw)

    async def call(self, path: str, body: object, **options: Any) -> Caller:
        """Send a request and wait for the whole answer."""
        caller = self.caller(path, body, **options)
        await caller.run()
        return caller

    async def reserved(self) -> int:
        """What living leases hold, over all counters."""
        return sum(usage.reserved for usage in await self.store.usage())

    async def records(self) -> list[UsageRecord]:
        """The usage records of all requests that have ended, oldest first."""
        await self.services.usage.flush()
        await self.carrier.carry()
        async with aclosing(self.usage.records(Selection())) as records:
            return [record async for record in records]

    async def used(self, dimension: str) -> int:
        """What is counted in the `requests` or `tokens` counter of the only tenant."""
        return sum(u.used for u in await self.store.usage() if f"/{dimension}/" in u.counter)


@dataclass(slots=True)
class Caller:
    """One request by hand, and what came back."""

    gateway: Gateway
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    app: ASGIApp = field(default_factory=assemble)
    status: int = 0
    response_headers: dict[str, str] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    is_complete: bool = False
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    leave_after_chunks: int | None = None
    _is_body_sent: bool = False

    async def run(self) -> None:
        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 1),
            "headers": [
                (k.encode("latin-1"), v.encode("latin-1")) for k, v in self.headers.items()
            ],
            "state": {"services": self.gateway.services},
        }
        await self.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.leave.wait()  # as servers do, also when the answer is complete
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.response_headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        if message.get("body"):
            self.chunks.append(message["body"])
        self.is_complete = not message.get("more_body", False)
        left_early = (
            self.leave_after_chunks is not None and len(self.chunks) >= self.leave_after_chunks
        )
        if left_early or self.is_complete:
            self.leave.set()

    @property
    def text(self) -> str:
        return b"".join(self.chunks).decode()

    def json(self) -> Any:
        return json.loads(self.text)

    def events(self) -> list[Any]:
        """The JSON of every event of a stream, without `[DONE]` and comments."""
        lines = [line for line in self.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@asynccontextmanager
async def gateway_over(
    home: Path,
    backends: Mapping[str, Backend],
    *,
    policy: str = POLICY,
    keep_alive_s: float = 60.0,
    store: LimitStore | None = None,
    limit_clock: Callable[[], float] = time.time,
    usage_capacity: int = 1000,
    guard: Guard | None = None,
    trusted_proxies: tuple[Network, ...] = (),
    oidc: OidcSettings | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway with one tenant on the plan `demo`. Without a `guard` it counts no failures."""
    async with AsyncExitStack() as stack:
        directory = await Directory.open(home)
        stack.push_async_callback(directory.aclose)
        await directory.create_tenant("acme", plan="demo")
        key, _ = await directory.create_key("acme", name="test", now_s=time.time())
        usage = await UsageStore.open(home)
        stack.push_async_callback(usage.aclose)
        store = store or MemoryStore(clock=limit_clock)
        stack.push_async_callback(store.aclose)
        carrier = UsageCarrier(store, usage)  # which carries when a test looks
        writer = await stack.enter_async_context(UsageWriter(usage, capacity=usage_capacity))
        leases = await stack.enter_async_context(Leases(store))
        spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(spans))
        tracing = Tracing(provider)
        stack.callback(tracing.close)
        for backend in backends.values():
            stack.push_async_callback(backend.aclose)
        rules = parse(policy, "policy.yaml")
        token_check = await stack.enter_async_context(
            open_token_check(oidc, directory, rules.plans.keys())
        )
        services = Services(
            policy=rules,
            backends=backends,
            directory=directory,
            store=store,
            leases=leases,
            guard=guard or Guard(**UNGUARDED, clock=time.monotonic),
            usage=writer,
            usage_store=usage,
            metrics=Metrics(),
            tracing=tracing,
            drain=Drain(1.0),
            traffic=Traffic(),
            sleep=asyncio.sleep,
            monotonic=time.monotonic,
            wall_clock=time.time,
            body_limit_bytes=100_000,
            body_timeout_s=5.0,
            keep_alive_s=keep_alive_s,
            trusted_proxies=trusted_proxies,
            token_check=token_check,
        )
        yield Gateway(
            services=services, store=store, usage=usage, carrier=carrier, spans=spans, key=key
        )
