"""The composition root: the only place that builds stores, backends and middleware.

Everything is opened in the lifespan, in the order it is needed, and closed in the reverse.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Lifespan

from backends.base import Backend
from backends.registry import (
    BackendSpec,
    has_engine_process,
    needs_model_files,
    open_backend,
)
from gateway.call import Services
from gateway.catalog import resolve_model
from gateway.config import Settings
from gateway.dialects.openai_errors import openai_error_reply
from gateway.drain import Drain
from gateway.errors import GatewayError, InternalError, MethodNotAllowed, RouteNotFound
from gateway.guard import Guard
from gateway.health import take_stock
from gateway.middleware import PublicCors, RequestId, TidyPath
from gateway.policy.load import load
from gateway.policy.model import BackendConfig, Policy
from gateway.resilience.traffic import Traffic
from gateway.routes import build_routes
from gateway.stores.opening import open_store
from gateway.telemetry.all_workers import PUBLISH_S, files_of
from gateway.telemetry.metrics import Metrics, Others
from gateway.telemetry.tgi_metrics import TGI_ENGINE
from gateway.telemetry.tracing import Tracing, open_provider
from gateway.tenancy.database import open_directory
from gateway.tenancy.leases import Leases
from gateway.tenancy.oidc.tokens import open_token_check
from gateway.usage.carrier import Outbox, UsageCarrier
from gateway.usage.retention import delete_old
from gateway.usage.store import UsageStore
from gateway.usage.writer import UsageWriter

EXPOSED_HEADERS = ("x-request-id", "x-turnout-decision", "x-turnout-backend", "retry-after")


def build_app(settings: Settings, drain: Drain) -> Starlette:
    """The ASGI application. The policy is read, and everything opened, when its lifespan starts."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[Mapping[str, Services]]:
        async with open_services(settings, load(settings.policy), drain) as services:
            yield {"services": services}

    return assemble(lifespan)


def assemble(lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """Routes, middleware and the last resort for errors; `lifespan` provides the services."""
    return Starlette(
        routes=build_routes(),
        lifespan=lifespan,
        middleware=[
            Middleware(RequestId),
            Middleware(TidyPath),
            Middleware(
                PublicCors,
                allow_origins=["*"],
                allow_methods=["GET", "POST", "OPTIONS"],
                allow_headers=["*"],
                expose_headers=EXPOSED_HEADERS,
            ),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
    )


@asynccontextmanager
async def open_services(
    settings: Settings, policy: Policy, drain: Drain
) -> AsyncGenerator[Services]:
    """Open what requests are served with, and close it again."""
    async with AsyncExitStack() as stack:
        metrics = Metrics(tgi_backends=tgi_backends(policy), others=other_workers(settings, policy))
        metrics.policy_info.labels(policy.digest).set(1)
        tracing = Tracing(open_provider(os.environ))
        stack.callback(tracing.close)
        store = await open_store(settings)
        stack.push_async_callback(store.aclose)
        opened = await stack.enter_async_context(open_usage(settings, store))
        usage_store, usage = opened
        leases = await stack.enter_async_context(
            Leases(
                store,
                num_gateways=settings.workers,
                on_warning=lambda one: metrics.limit_warnings.labels(one.claim.limit).inc(),
                on_store_error=metrics.store_errors.inc,
            )
        )
        directory = await open_directory(settings)
        stack.push_async_callback(directory.aclose)
        token_check = await stack.enter_async_context(
            open_token_check(settings.oidc, directory, policy.plans.keys())
        )
        backends: dict[str, Backend] = {}
        for config in policy.backends.values():
            backend = await open_backend(backend_spec(config, settings, settings.run_dir))
            stack.push_async_callback(backend.aclose)
            backends[config.name] = backend
        services = Services(
            policy=policy,
            backends=backends,
            directory=directory,
            store=store,
            leases=leases,
            guard=build_guard(settings),
            usage=usage,
            usage_store=usage_store,
            metrics=metrics,
            tracing=tracing,
            drain=drain,
            traffic=Traffic(),
            sleep=asyncio.sleep,
            monotonic=time.monotonic,
            wall_clock=time.time,
            body_limit_bytes=settings.body_limit_bytes,
            body_timeout_s=settings.body_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            trusted_proxies=settings.trusted_proxies,
            token_check=token_check,
        )
        if settings.workers > 1:
            await stack.enter_async_context(publishing(services))
        yield services


@asynccontextmanager
async def publishing(services: Services) -> AsyncGenerator[None]:
    """Keep this process's gauges fresh, for whichever gateway process is scraped."""

    async def publish() -> None:
        while True:
            await take_stock(services)
            await asyncio.sleep(PUBLISH_S)

    task = asyncio.create_task(publish(), name="publish-gauges")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def open_usage(
    settings: Settings, outbox: Outbox
) -> AsyncGenerator[tuple[UsageStore, UsageWriter]]:
    """Where records are, and how they go there.

    Closed after the leases, so that every ending is in it.
    """
    store = await UsageStore.open(settings.home)
    deleting: asyncio.Task[None] | None = None
    try:
        if settings.usage_retention is not None:
            keep_s = settings.usage_retention.total_seconds()
            deleting = asyncio.create_task(
                delete_old(store, keep_s=keep_s, wall_clock=time.time), name="usage-retention"
            )
        async with UsageCarrier(outbox, store), UsageWriter(store) as usage:
            yield store, usage
    finally:
        if deleting is not None:
            deleting.cancel()
            await asyncio.wait([deleting])
        await store.aclose()


def build_guard(settings: Settings) -> Guard:
    """What counts strangers and operators, by the settings."""
    return Guard(
        auth_failures_per_min=settings.auth_failures_per_min,
        admin_auth_failures_per_min=settings.admin_auth_failures_per_min,
        admin_requests_per_min=settings.admin_requests_per_min,
        clock=time.monotonic,
    )


def other_workers(settings: Settings, policy: Policy) -> Others | None:
    """What metrics need to know of other gateway processes; None if there are none."""
    if settings.workers == 1:
        return None
    own = (name for name, one in policy.backends.items() if not has_engine_process(one.engine))
    return Others(files=files_of(settings.run_dir), own_backends=frozenset(own))


def tgi_backends(policy: Policy) -> frozenset[str]:
    """The names of those that have TGI's metrics beside the others."""
    return frozenset(
        name for name, config in policy.backends.items() if config.engine == TGI_ENGINE
    )


def backend_spec(config: BackendConfig, settings: Settings, run_dir: Path) -> BackendSpec:
    """A policy's backend entry with its model found on disk and its socket named."""
    on_disk = needs_model_files(config.engine)
    return BackendSpec(
        name=config.name,
        engine=config.engine,
        model=config.model,
        options=config.options,
        model_path=resolve_model(config.model, settings.home) if on_disk else None,
        socket_path=run_dir / f"{config.name}.sock",
    )


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or method that does not exist, in the shape that clients of every dialect can read."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    problem: GatewayError
    if error.status_code == 405:
        allowed = tuple((error.headers or {}).get("Allow", "").split(", "))
        problem = MethodNotAllowed(
            f"Not allowed to {request.method} on {request.url.path}; use {', '.join(allowed)}.",
            allowed=allowed,
        )
    else:
        problem = RouteNotFound(f"Invalid URL ({where}).")
    return _as_response(problem)


async def _unexpected(request: Request, error: Exception) -> Response:
    return _as_response(InternalError())


def _as_response(problem: GatewayError) -> Response:
    reply = openai_error_reply(problem)
    return Response(
        reply.body, reply.status, headers=dict(reply.headers), media_type=reply.media_type
    )
