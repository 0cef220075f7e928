"""Liveness, readiness and metrics: what probes and scrapers see. None of it takes a queue slot.

`/livez` says that the event loop turns; `/readyz` that a request would be served: a backend is
ready, the limit store answers, and the process is not draining. A busy backend is ready. `/health`
and `/ping` are readiness under the names that TGI and vLLM give it.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from backends.base import BackendState, BackendStatus
from gateway.call import Services

UNHEALTHY = {"error": "unhealthy", "error_type": "healthcheck"}
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What it takes to serve a request."""

    backends: dict[str, BackendStatus]
    store_problem: str  # empty: the limits can be checked
    draining: bool

    def __bool__(self) -> bool:
        any_ready = any(one.state is BackendState.READY for one in self.backends.values())
        return any_ready and not self.store_problem and not self.draining


def services_of(request: Request) -> Services:
    """What the composition root built."""
    services: Services = request.state.services
    return services


async def statuses_of(services: Services) -> dict[str, BackendStatus]:
    """Every backend's word on itself."""
    return {name: await backend.status() for name, backend in services.backends.items()}


async def readiness_of(services: Services) -> Readiness:
    """Asked anew each time."""
    return Readiness(
        backends=await statuses_of(services),
        store_problem=await services.leases.problem(),
        draining=services.drain.is_draining,
    )


async def live(request: Request) -> Response:
    """The loop turns, or nobody would answer."""
    return PlainTextResponse("ok")


async def ready(request: Request) -> Response:
    """Whether a request would be served now, and what the store and each backend say."""
    services = services_of(request)
    readiness = await readiness_of(services)
    body = {
        "ready": bool(readiness),
        "draining": readiness.draining,
        "policy": services.policy.digest,
        "store": {"ready": not readiness.store_problem, "detail": readiness.store_problem},
        "backends": {
            name: {
                "state": status.state.value,
                "detail": status.detail,
                "engine": status.engine,
                "deterministic": status.deterministic,
            }
            for name, status in readiness.backends.items()
        },
    }
    return JSONResponse(body, status_code=200 if readiness else 503)


async def healthy(request: Request) -> Response:
    """Readiness in TGI's and vLLM's words: an empty 200, or 503 with a JSON body."""
    if await readiness_of(services_of(request)):
        return Response(status_code=200)
    return JSONResponse(UNHEALTHY, status_code=503, headers={"retry-after": "1"})


async def root(request: Request) -> Response:
    """The same for clients of TGI, which want a status, and of Ollama, which want this text."""
    if await readiness_of(services_of(request)):
        return PlainTextResponse("Ollama is running")
    return JSONResponse(UNHEALTHY, status_code=503, headers={"retry-after": "1"})


async def take_stock(services: Services) -> None:
    """Set the gauges to how things stand right now."""
    services.metrics.show(
        await statuses_of(services),
        num_active=services.drain.num_active,
        num_unwritten=services.usage.num_unwritten,
    )


async def metrics(request: Request) -> Response:
    """The Prometheus exposition, gauges read at this moment."""
    services = services_of(request)
    await take_stock(services)
    return Response(services.metrics.render(), media_type=EXPOSITION)
