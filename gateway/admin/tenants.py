"""Tenants over the admin API: listed, created, changed, disabled, deleted."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import Field
from starlette.responses import JSONResponse, Response

from gateway.admin.call import AdminCall, page_of
from gateway.dialects.fields import Body
from gateway.errors import InvalidRequest
from gateway.tenancy.tenants import Tenant


class _NewTenant(Body):
    name: str = Field(min_length=1)
    plan: str


class _ChangedTenant(Body):
    plan: str


async def list_tenants(call: AdminCall) -> Response:
    """A page of tenants, by name."""
    size = call.page_size()
    tenants = await call.services.directory.tenants(after=call.query("after"), limit=size + 1)
    return JSONResponse(page_of([(one.name, asdict(one)) for one in tenants], size))


async def create_tenant(call: AdminCall) -> Response:
    """Add a tenant on a plan that the policy has."""
    body = await call.body(_NewTenant)
    call.target = f"{body.name} plan={body.plan}"
    _check_plan(call, body.plan)
    tenant = await call.services.directory.create_tenant(body.name, plan=body.plan)
    return _shown(tenant, status=201)


async def show_tenant(call: AdminCall) -> Response:
    """One tenant."""
    return _shown(await call.services.directory.tenant(call.path("name")))


async def change_tenant(call: AdminCall) -> Response:
    """Put a tenant on another plan that the policy has."""
    body = await call.body(_ChangedTenant)
    call.target += f" plan={body.plan}"
    _check_plan(call, body.plan)
    return _shown(await call.services.directory.set_plan(call.path("name"), body.plan))


async def disable_tenant(call: AdminCall) -> Response:
    """Close every key of a tenant until it is enabled."""
    directory = call.services.directory
    return _shown(await directory.disable_tenant(call.path("name"), now_s=call.now_s))


async def enable_tenant(call: AdminCall) -> Response:
    """Undo that."""
    return _shown(await call.services.directory.enable_tenant(call.path("name")))


async def delete_tenant(call: AdminCall) -> Response:
    """Remove a disabled tenant and its keys, for good; as it was."""
    return _shown(await call.services.directory.delete_tenant(call.path("name")))


def _check_plan(call: AdminCall, plan: str) -> None:
    """The directory takes any name for a plan; here it is known which there are."""
    plans = call.services.policy.plans
    if plan not in plans:
        raise InvalidRequest(
            f"The policy has no plan {plan[:60]!r}; it has {', '.join(plans)}.",
            param="plan",
            code="unknown_plan",
        )


def _shown(tenant: Tenant, *, status: int = 200) -> Response:
    return JSONResponse(asdict(tenant), status)
