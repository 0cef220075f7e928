"""How things stand: what limits count now, and who asks."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from gateway.admin.call import AdminCall, page_of
from gateway.stores.base import Usage

TENANT_SCOPE = "tenant:"
"""In front of a tenant's id, the end of a scope of its counters: `gateway/tenancy/limits.py`."""


async def show_limits(call: AdminCall) -> Response:
    """A page of the counters that are not zero, by their names: what is counted and reserved."""
    size, after, tenant = call.page_size(), call.query("after"), call.query("tenant")
    directory = call.services.directory
    if tenant:
        await directory.tenant(tenant)  # or a typing error would look like no use
    names = {one.tenant_id: one.name for one in await directory.tenants()}
    found = [
        (usage.counter, _shown(usage, names))
        for usage in sorted(await call.services.store.usage(), key=lambda one: one.counter)
        if usage.counter > after
    ]
    wanted = [one for one in found if not tenant or one[1]["tenant"] == tenant]
    return JSONResponse(page_of(wanted[: size + 1], size))


async def whoami(call: AdminCall) -> Response:
    """The admin key that asks, and where it is seen from."""
    admin = call.admin
    return JSONResponse(
        {
            "key_id": admin.key_id,
            "name": admin.name,
            "scope": admin.scope,
            "expires_s": admin.expires_s,
            "address": None if call.address is None else str(call.address),
        }
    )


def _shown(usage: Usage, names: dict[str, str]) -> dict[str, object]:
    scope, limit, dimension, window = usage.counter.rsplit("/", 3)
    tenant_id = scope.rpartition(TENANT_SCOPE)[2] if TENANT_SCOPE in scope else ""
    return {
        "limit": limit,
        "dimension": dimension,
        "window": window,  # its seconds, or the day or month
        "scope": scope,
        "tenant": names.get(tenant_id),  # null: nobody's, or of one that was deleted
        "used": usage.used,
        "reserved": usage.reserved,
    }
