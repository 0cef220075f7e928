"""What is served, and how texts are cut into tokens: `/v1/models`, `/info`, `/tokenize`.

Small questions, answered from the policy and from what backends say of themselves; nothing is
generated and no lease is held. Knows no wire format: the dialects write the answers.
"""

from __future__ import annotations

from importlib.metadata import version

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from backends.base import BackendStatus, Tokenizing
from backends.errors import BackendError
from gateway.authenticate import authenticate
from gateway.body import check_media_type, read_body
from gateway.call import Services, headers_asked_for
from gateway.dialects.base import Reply
from gateway.dialects.models import ModelCard, info_reply, model_reply, models_reply
from gateway.dialects.openai_errors import openai_error_reply
from gateway.dialects.tokenize import parse_tokenize, tokenize_error
from gateway.errors import GatewayError, ModelNotFound, UnsupportedValue, from_backend
from gateway.health import services_of
from gateway.policy.decide import allowed_models, reachable_backends
from gateway.policy.match import Facts
from gateway.policy.model import Policy, Route
from gateway.tenancy.key_rules import KeyScope
from gateway.tenancy.tenants import Principal

STARTED_S = 0
"""`created` of every model: a constant, so that two workers give the same list."""


async def list_models(request: Request) -> Response:
    """`GET /v1/models`: what the key may use of its plan's."""
    services = services_of(request)
    try:
        principal = await authenticate(services, request.scope, KeyScope.MODELS)
    except GatewayError as error:
        return _response(openai_error_reply(error))
    names = _models_of(services, principal)
    return _response(models_reply([await _card(services, name) for name in names]))


async def show_model(request: Request) -> Response:
    """`GET /v1/models/{id}`: one of them; ids may hold slashes."""
    services = services_of(request)
    name = request.path_params["model"]
    try:
        principal = await authenticate(services, request.scope, KeyScope.MODELS)
        if name not in _models_of(services, principal):
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
        deterministic=status.deterministic,
    )
    return _response(reply)


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`, in TGI's or vLLM's form."""
    services = services_of(request)
    body = b""
    try:
        principal = await authenticate(services, request.scope, KeyScope.TOKENIZE)
        check_media_type(request.headers)
        body = await read_body(
            request.headers,
            request.receive,
            limit_bytes=services.body_limit_bytes,
            timeout_s=services.body_timeout_s,
        )
        query = parse_tokenize(body)
        name, backend = _tokenizer(services, principal, query.model, request.headers)
        tokens = await backend.encode(query.prompt)
        status = await services.backends[name].status()
        return _response(query.reply(tokens, max_model_len=status.max_model_len))
    except GatewayError as error:
        return _response(tokenize_error(error, body))
    except BackendError as error:
        return _response(tokenize_error(from_backend(error), body))


def _tokenizer(
    services: Services, principal: Principal, model: str, headers: Headers
) -> tuple[str, Tokenizing]:
    """The backend that would cut a prompt for this model into tokens, and its name."""
    facts = Facts(
        tenant=principal.tenant.name,
        plan=principal.tenant.plan,
        model=model,
        endpoint="generate",
        stream=False,
        headers=headers_asked_for(services.policy, headers),
        key_models=principal.rules.models,
    )
    names = reachable_backends(services.policy, facts)
    if not names:
        raise ModelNotFound(model)
    for name in names:
        backend = services.backends[name]
        if isinstance(backend, Tokenizing):
            return name, backend
    raise UnsupportedValue(f"No backend of model '{model}' has a tokenizer here.", param="model")


def _models_of(services: Services, principal: Principal) -> tuple[str, ...]:
    return allowed_models(services.policy, principal.tenant.plan, principal.rules.models)


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
    first = next(iter(_first_route(services.policy, model).shares))
    return await services.backends[first].status()


def _first_route(policy: Policy, model: str) -> Route:
    for route in policy.routes:
        if route.match.models is None or route.match.models.hold(model):
            return route
    return policy.routes[0]


def _response(reply: Reply) -> Response:
    return Response(
        reply.body, reply.status, headers=dict(reply.headers), media_type=reply.media_type
    )
