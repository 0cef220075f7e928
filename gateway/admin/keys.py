"""Tenants' keys over the admin API: issued, listed, rotated, revoked.

A secret is in the answer that issues it, and nowhere else.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from gateway.admin.call import AdminCall, page_of
from gateway.dialects.fields import Body
from gateway.errors import InvalidRequest
from gateway.tenancy.key_rules import KeyRules, KeyRulesError, parse_rules
from gateway.tenancy.lifetimes import OVERLAP_S, lifetime_s
from gateway.tenancy.schema import UnknownKey
from gateway.tenancy.tenants import KeyRecord

# an empty list would read as "nothing", and the rules take it for "anything": neither is guessed
_Words = Annotated[list[str] | None, Field(min_length=1, max_length=1000)]


class _NewKey(Body):
    name: str = Field("", max_length=200)
    description: str = Field("", max_length=2000)
    expires: str | None = None
    scopes: _Words = None
    models: _Words = None
    networks: _Words = None


class _Rotation(Body):
    overlap: str | None = None
    expires: str | None = None


async def list_keys(call: AdminCall) -> Response:
    """A page of a tenant's keys, oldest first."""
    tenant, size, after = call.path("name"), call.page_size(), call.query("after")
    try:
        records = await call.services.directory.keys(tenant, after=after or None, limit=size + 1)
    except UnknownKey:
        raise InvalidRequest(
            f"after={after[:60]!r} is no key's id; send what the page before had as `next`.",
            param="after",
        ) from None
    return JSONResponse(page_of([(one.key_id, _shown(one, tenant)) for one in records], size))


async def create_key(call: AdminCall) -> Response:
    """Issue a key, and tell its secret, this once."""
    tenant = call.path("name")
    body = await call.body(_NewKey)
    secret, record = await call.services.directory.create_key(
        tenant,
        name=body.name,
        description=body.description,
        now_s=call.now_s,
        expires_s=_end_s(call, body.expires),
        rules=_rules(body),
    )
    call.target += f" key={record.key_id}"
    return JSONResponse({**_shown(record, tenant), "key": secret}, 201)


async def show_key(call: AdminCall) -> Response:
    """One key with its rules, without its secret."""
    record = await call.services.directory.key(call.path("key_id"))
    return JSONResponse(_shown(record, await _tenant_of(call, record)))


async def rotate_key(call: AdminCall) -> Response:
    """Issue a key like another, which ends after the overlap, and tell its secret, this once."""
    body = await call.body(_Rotation)
    directory, key_id = call.services.directory, call.path("key_id")
    secret, successor = await directory.rotate_key(
        key_id,
        overlap_s=OVERLAP_S if body.overlap is None else _lifetime_s("overlap", body.overlap),
        now_s=call.now_s,
        expires_s=_end_s(call, body.expires),
    )
    call.target += f" successor={successor.key_id}"
    tenant = await _tenant_of(call, successor)
    replaced = _shown(await directory.key(key_id), tenant)
    return JSONResponse({**_shown(successor, tenant), "key": secret, "replaces": replaced}, 201)


async def revoke_key(call: AdminCall) -> Response:
    """Close a key for good; as it is now."""
    record = await call.services.directory.revoke_key(call.path("key_id"), now_s=call.now_s)
    return JSONResponse(_shown(record, await _tenant_of(call, record)))


def _shown(record: KeyRecord, tenant: str) -> dict[str, object]:
    return {**record.to_dict(), "tenant": tenant}


async def _tenant_of(call: AdminCall, record: KeyRecord) -> str:
    return (await call.services.directory.tenant_of(record)).name


def _end_s(call: AdminCall, expires: str | None) -> float | None:
    return None if expires is None else call.now_s + _lifetime_s("expires", expires)


def _lifetime_s(field: str, text: str) -> int:
    try:
        return lifetime_s(text)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {error}.", param=field) from None


def _rules(body: _NewKey) -> KeyRules:
    words = {"scopes": body.scopes, "models": body.models, "networks": body.networks}
    given = {name: value for name, value in words.items() if value is not None}
    for name, value in given.items():  # one by one, to say which cannot be
        try:
            parse_rules(**{name: value})
        except KeyRulesError as error:
            raise InvalidRequest(f"{name}: {error}.", param=name) from None
    return parse_rules(**given)
