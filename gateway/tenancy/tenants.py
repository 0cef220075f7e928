"""Tenants and keys as frozen values. Knows no database and no policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who pays and is limited. What it may do is its plan's business, in the policy."""

    tenant_id: str
    name: str
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An issued key without its secret. Times are Unix seconds."""

    key_id: str  # public handle: what `keys list` shows and `keys revoke` takes
    tenant_id: str
    name: str
    hint: str  # `to_live_` + first 4 … last 4, to recognise it by
    created_s: float
    expires_s: float | None
    revoked_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The outcome of authentication."""

    tenant: Tenant
    key_id: str
