"""What is served, and how texts are cut into tokens: `/v1/models`, `/info`, `/tokenize`.

Small questions, answered from the policy and from what backends say of themselves; nothing is
generated and no lease is held. Knows no wire format: the dialects write the answers.
"""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response

from backends.base import BackendStatus, Tokenizing
from backends.errors import BackendError
from gateway.body import check_media_type, read_body
from gateway.call import Services
from gateway.dialects.base import Reply
from gateway.dialects.models import ModelCard, info_reply, model_reply, models_reply
from gateway.dialects.openai_errors import openai_error_reply
from gateway.dialects.tokenize import parse_tokenize, tokenize_error
from gateway.errors import GatewayError, ModelNotFound, UnsupportedValue, from_backend
from gateway.health import services_of
from gateway.pipeline import rejection
from gateway.policy.decide import allowed_models, decide
from gateway.policy.model import Facts, Policy, Route
from gateway.tenancy.keys import bearer
from gateway.tenancy.tenants import Principal

STARTED_S = 0
"""`created` of every model: a constant, so that two workers give the same list."""


async def list_models(request: Request) -> Response:
    """`GET /v1/models`: what the key's plan may use."""
    services = services_of(request)
    try:
        principal = await _authenticate(request, services)
    except GatewayError as error:
        return _response(openai_error_reply(error))
    names = allowed_models(services.policy, principal.tenant.plan)
    return _response(models_reply([await _card(services, name) for name in names]))


async def show_model(request: Request) -> Response:
    """`GET /v1/models/{id}`: one of them; ids may hold slashes."""
    services = services_of(request)
    name = request.path_params["model"]
    try:
        principal = await _authenticate(request, services)
        if name not in allowed_models(services.policy, principal.tenant.plan):
            raise ModelNotFound(name)
    except GatewayError as error:
        return _response(openai_error_reply(error))
    return _response(model_reply(await _card(services, name)))


async def info(request: Request) -> Response:
    """`GET /info`: the default model in TGI's words."""
    services = services_of(request)
    name = services.policy.default_model
    status = await _status_behind(services, name)
    reply = info_reply(
        model_id=status.model_id or name,
        max_model_len=status.max_model_len,
        max_concurrent_requests=status.max_concurrent_requests,
        version=version("turnout"),
    )
    return _response(reply)


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`, in TGI's or vLLM's form."""
    services = services_of(request)
    body = b""
    try:
        principal = await _authenticate(request, services)
        check_media_type(request.headers)
        body = await read_body(
            request.headers,
            request.receive,
            limit_bytes=services.body_limit_bytes,
            timeout_s=services.body_timeout_s,
        )
        query = parse_tokenize(body)
        backend, status = await _tokenizer(services, principal, query.model)
        tokens = await backend.encode(query.prompt)
        return _response(query.reply(tokens, max_model_len=status.max_model_len))
    except GatewayError as error:
        return _response(tokenize_error(error, body))
    except BackendError as error:
        return _response(tokenize_error(from_backend(error), body))


async def _authenticate(request: Request, services: Services) -> Principal:
    secret = bearer(request.headers.items())
    return await services.directory.authenticate(secret, now_s=services.wall_clock())


async def _tokenizer(
    services: Services, principal: Principal, model: str
) -> tuple[Tokenizing, BackendStatus]:
    """The backend that would serve this model, if it has a tokenizer."""
    statuses = {name: await backend.status() for name, backend in services.backends.items()}
    facts = Facts(
        tenant=principal.tenant.name,
        plan=principal.tenant.plan,
        model=model,
        endpoint="generate",
        stream=False,
    )
    decision = decide(
        services.policy, facts, {name: status.state for name, status in statuses.items()}
    )
    if decision.reject is not None:
        raise rejection(decision.reject, model)
    name = decision.attempts[0]
    backend = services.backends[name]
    if not isinstance(backend, Tokenizing):
        raise UnsupportedValue(
            f"The backend of model '{decision.model}' has no tokenizer here.", param="model"
        )
    return backend, statuses[name]


async def _card(services: Services, name: str) -> ModelCard:
    status = await _status_behind(services, name)
    return ModelCard(
        id=name,
        root=status.model_id or name,
        created_s=STARTED_S,
        max_model_len=status.max_model_len,
    )


async def _status_behind(services: Services, model: str) -> BackendStatus:
    """The word of the backend that serves a model first, by the policy's order of routes."""
    return await services.backends[_first_route(services.policy, model).use].status()


def _first_route(policy: Policy, model: str) -> Route:
    for route in policy.routes:
        if not route.match.models or model in route.match.models:
            return route
    return policy.routes[0]


def _response(reply: Reply) -> Response:
    return Response(
        reply.body, reply.status, headers=dict(reply.headers), media_type=reply.media_type
    )
