"""From a request's headers to who asks: the one way in, for every route that needs a key."""

from __future__ import annotations

import logging

from starlette.types import Scope

from gateway.call import Services
from gateway.errors import Forbidden, IpNotAuthorized
from gateway.guard import Door
from gateway.networks import Address, caller_address
from gateway.tenancy.key_rules import KeyScope
from gateway.tenancy.keys import bearer
from gateway.tenancy.oidc.tokens import token_of
from gateway.tenancy.tenants import Principal

log = logging.getLogger("turnout.authenticate")


async def authenticate(services: Services, scope: Scope, needed: KeyScope) -> Principal:
    """Whose key or token the request holds, if it may be used from there and for `needed`.

    Which models it may be used for is decided with the route, on the model that is dispatched.

    Raises:
        Unauthenticated: it holds none, several, or one that opens nothing.
        RateLimited: the address has shown too many of these, and this one was never good here.
        IpNotAuthorized: the key does not open anything from this address.
        Forbidden: the key lacks the scope, or the token names no plan.
        Overloaded: keys cannot be looked up at the moment.
    """
    address = address_of(services, scope)
    authorization, x_api_key = credentials_of(scope)
    token = token_of(authorization, x_api_key) if services.token_check is not None else None
    if services.token_check is not None and token is not None:
        with services.guard.proof(Door.PUBLIC, address):
            principal = await services.token_check.authenticate(token, now_s=services.wall_clock())
    else:
        with services.guard.attempt(Door.PUBLIC, address, (*authorization, *x_api_key)):
            secret = bearer(authorization, x_api_key)
            principal = await services.directory.authenticate(secret, now_s=services.wall_clock())
    what = "API key" if token is None else "token"
    rules = principal.rules
    if rules.networks is not None and not rules.allows_address(address):
        log.info("refused key %s from %s", principal.key_id, address)
        raise IpNotAuthorized(
            f"This {what} may not be used from your address; ask your operator to allow it."
        )
    if needed not in rules.scopes:
        raise Forbidden(
            f"This {what} lacks the scope '{needed}', it has {', '.join(rules.scope_words())}; "
            "ask your operator for a key that has it."
        )
    return principal


def credentials_of(scope: Scope) -> tuple[list[bytes], list[bytes]]:
    """All values of the two headers that may hold a key, as they came in."""
    return _values(scope, b"authorization"), _values(scope, b"x-api-key")


def address_of(services: Services, scope: Scope) -> Address | None:
    """Who sent the request, as far as trusted proxies say so; None if that cannot be known."""
    peer: tuple[str, int] | None = scope.get("client")
    forwarded_for = [value.decode("latin-1") for value in _values(scope, b"x-forwarded-for")]
    return caller_address(peer[0] if peer else None, forwarded_for, services.trusted_proxies)


def _values(scope: Scope, header: bytes) -> list[bytes]:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return [value for name, value in headers if name == header]
