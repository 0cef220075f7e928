"""The way in and out of the admin API, the same for all of it.

    guard -> admin key -> scope -> query -> handler -> answer, and an audit line of every change

Knows nothing of what is administrated. An answer is never cached, as it may hold a secret.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admin.call import AdminCall
from gateway.authenticate import address_of, credentials_of
from gateway.body import ClientGone
from gateway.call import Services
from gateway.dialects.openai_errors import openai_error_reply
from gateway.errors import (
    Conflict,
    Forbidden,
    GatewayError,
    InternalError,
    InvalidRequest,
    KeyNotFound,
    Overloaded,
    TenantNotFound,
)
from gateway.guard import Door
from gateway.networks import Address
from gateway.stores.base import StoreError
from gateway.tenancy.keys import bearer
from gateway.tenancy.schema import (
    DirectoryError,
    KeyEnded,
    TenantExists,
    TenantInUse,
    UnknownKey,
    UnknownTenant,
)
from gateway.tenancy.tenants import AdminKey, AdminScope
from gateway.usage.schema import UsageError

log = logging.getLogger("turnout.admin")
audit = logging.getLogger("turnout.audit")

_SHOWN_CHARS = 200  # of what was changed, in an audit line: a path may be long


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one method does on one path."""

    handle: Callable[[AdminCall], Awaitable[Response]]
    query: tuple[str, ...] = ()  # parameters that it reads
    takes_body: bool = False
    changes: str = ""  # in a word or two, for the audit line; "" if it only reads

    @property
    def scope(self) -> AdminScope:
        """What it asks of a key."""
        return AdminScope.WRITE if self.changes else AdminScope.READ


@dataclass(frozen=True, slots=True)
class Resource:
    """An ASGI application for one path: its actions by method."""

    path: str
    actions: Mapping[str, Action]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientGone:
            return
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        services: Services = request.state.services
        action = self.actions["GET" if request.method == "HEAD" else request.method]
        address = address_of(services, request.scope)
        try:
            services.guard.count_admin_request(address)
            admin = await authenticate_admin(services, request.scope, address)
        except GatewayError as error:
            return _error_response(error)
        call = AdminCall(
            services=services,
            request=request,
            admin=admin,
            address=address,
            now_s=services.wall_clock(),
            target=" ".join(request.path_params.values()),
        )
        result = "cut off"
        try:
            response = await _perform(action, call)
            result = str(response.status_code)
        finally:
            if action.changes:
                _write_audit_line(call, action, result)
        return response


async def authenticate_admin(services: Services, scope: Scope, address: Address | None) -> AdminKey:
    """Which admin key the request holds.

    Raises:
        Unauthenticated: it holds none, several, or one that does not open the admin API.
        RateLimited: the address has shown too many of these, and this one was never good here.
        Overloaded: keys cannot be looked up at the moment.
    """
    authorization, x_api_key = credentials_of(scope)
    with services.guard.attempt(Door.ADMIN, address, (*authorization, *x_api_key)):
        secret = bearer(authorization, x_api_key)
        return await services.directory.admin_keys.authenticate(secret, now_s=services.wall_clock())


async def _perform(action: Action, call: AdminCall) -> Response:
    """The handler's answer, or the error it ends with."""
    try:
        if not call.admin.allows(action.scope):
            raise Forbidden(
                f"This admin key may {call.admin.scope}, which does not do; use one that may "
                f"{action.scope}."
            )
        call.check_query(action.query)
        if not action.takes_body:
            await call.no_body()
        return await action.handle(call)
    except GatewayError as error:
        return _error_response(error)
    except DirectoryError as error:
        return _error_response(_from_directory(error))
    except (StoreError, UsageError, SQLAlchemyError, OSError):
        log.exception("%s %r failed", call.request.method, call.request.url.path)
        return _error_response(Overloaded("The database cannot be used at the moment; try again."))
    except ClientGone:
        raise
    except Exception:  # the request's door: a bug of ours ends one request, not the process
        log.exception("%s %r failed", call.request.method, call.request.url.path)
        return _error_response(InternalError())


def _from_directory(error: DirectoryError) -> GatewayError:
    """What the directory refused, in terms of HTTP. Remedies for those who have the command go."""
    message = f"{error.what[0].upper()}{error.what[1:]}."
    match error:
        case UnknownTenant():
            return TenantNotFound(message)
        case UnknownKey():
            return KeyNotFound(message)
        case TenantExists():
            return Conflict(message, code="tenant_exists")
        case TenantInUse():
            return Conflict(f"{message} Disable it first.", code="tenant_in_use")
        case KeyEnded():
            return Conflict(message, code="key_ended")
        case _:
            return InvalidRequest(message)


def _write_audit_line(call: AdminCall, action: Action, result: str) -> None:
    target = call.target if len(call.target) <= _SHOWN_CHARS else f"{call.target[:_SHOWN_CHARS]}…"
    audit.info(
        "%s %r by admin key %s (%s) from %s: %s",
        action.changes,
        target,
        call.admin.key_id,
        call.admin.name,
        call.address,
        result,
        extra={
            "fields": {
                "action": action.changes,
                "target": target,
                "admin_key_id": call.admin.key_id,
                "admin_key": call.admin.name,
                "address": str(call.address),
                "result": result,
                "request_id": call.request.scope.get("request_id", ""),
            }
        },
    )


def _error_response(error: GatewayError) -> Response:
    reply = openai_error_reply(error)
    return Response(
        reply.body, reply.status, headers=dict(reply.headers), media_type=reply.media_type
    )
