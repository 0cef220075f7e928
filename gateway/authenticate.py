"""From a request's headers to who asks: the one way in, for every route that needs a key."""

from __future__ import annotations

from starlette.types import Scope

from gateway.call import Services
from gateway.tenancy.keys import bearer
from gateway.tenancy.tenants import Principal


async def authenticate(services: Services, scope: Scope) -> Principal:
    """Whose key the request holds.

    Raises:
        Unauthenticated: it holds none, several, or one that opens nothing.
        Overloaded: keys cannot be looked up at the moment.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    secret = bearer(
        [value for name, value in headers if name == b"authorization"],
        [value for name, value in headers if name == b"x-api-key"],
    )
    return await services.directory.authenticate(secret, now_s=services.wall_clock())
