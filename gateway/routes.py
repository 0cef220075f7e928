"""Path to handler: one table. A path that is not here does not exist; one that needs a key says so.

Every route needs a key but those of `OPEN_PATHS`, and those of the admin API one of their own kind;
a test walks the table.
"""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from gateway import health, models_api
from gateway.admin.routes import RESOURCES
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.tgi import Tgi, TgiRoute
from gateway.pipeline import GenerationEndpoint

OPEN_PATHS = frozenset(
    {"/", "/health", "/ping", "/livez", "/readyz", "/startupz", "/metrics", "/info"}
)
"""GET here needs no key: probes, scrapers and clients that ask what kind of server this is."""

GENERATION = (
    GenerationEndpoint("chat", "/v1/chat/completions", OpenAIChat()),
    GenerationEndpoint("completions", "/v1/completions", OpenAICompletions()),
    GenerationEndpoint("generate", "/generate", Tgi(TgiRoute.GENERATE)),
    GenerationEndpoint("generate", "/generate_stream", Tgi(TgiRoute.GENERATE_STREAM)),
    GenerationEndpoint("generate", "/", Tgi(TgiRoute.ROOT)),
)


def build_routes() -> list[BaseRoute]:
    """The whole table."""
    return [
        Route("/", health.root, methods=["GET"]),
        Route("/health", health.healthy, methods=["GET"]),
        Route("/ping", health.healthy, methods=["GET"]),
        Route("/livez", health.live, methods=["GET"]),
        Route("/readyz", health.ready, methods=["GET"]),
        Route("/startupz", health.healthy, methods=["GET"]),
        Route("/metrics", health.metrics, methods=["GET"]),
        Route("/info", models_api.info, methods=["GET"]),
        Route("/v1/models", models_api.list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", models_api.show_model, methods=["GET"]),
        Route("/tokenize", models_api.tokenize, methods=["POST"]),
        *(Route(endpoint.path, endpoint, methods=["POST"]) for endpoint in GENERATION),
        *(Route(one.path, one, methods=list(one.actions)) for one in RESOURCES),
    ]
