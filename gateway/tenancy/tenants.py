"""Tenants and keys, those of operators too, as frozen values. Knows no database and no policy."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, fields

from gateway.tenancy.key_rules import KeyRules

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ADMIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")  # it stands in audit lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Who pays and is limited. What it may do is its plan's business, in the policy."""

    tenant_id: str
    name: str
    plan: str
    disabled_s: float | None = None  # since when none of its keys opens anything


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An issued key without its secret. Times are Unix seconds."""

    key_id: str  # public handle: what `keys list` shows and `keys revoke` takes
    tenant_id: str
    name: str
    description: str
    hint: str  # `to_live_` + first 4 … last 4, to recognise it by
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    successor_id: str | None  # the key that replaces it; set when it was rotated
    last_used_s: float | None  # to the minute
    rules: KeyRules

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON has it, and the table: the rules are fields of their own."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "rules"}
        return {
            **plain,
            "scopes": self.rules.scope_words(),
            "models": list(self.rules.models),
            "networks": self.rules.network_words(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The outcome of authentication."""

    tenant: Tenant
    key_id: str
    rules: KeyRules = field(default_factory=KeyRules)


class AdminScope(enum.StrEnum):
    """What an admin key may do. Who may write may read."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminKey:
    """An issued admin key without its secret. Times are Unix seconds."""

    key_id: str
    name: str
    scope: AdminScope
    hint: str  # `to_admin_` + first 4 … last 4, to recognise it by
    created_s: float
    expires_s: float | None
    revoked_s: float | None
    last_used_s: float | None  # to the minute

    def allows(self, needed: AdminScope) -> bool:
        """Whether the key is for that."""
        return self.scope is AdminScope.WRITE or needed is AdminScope.READ


def tenant_name_problem(name: str) -> str:
    """Why policies could not match a tenant of this name; empty if they can."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name!r} cannot be a tenant's name; use up to 63 lower-case letters, digits and "
        "'.', '_', '-', and begin with a letter or digit"
    )


def admin_name_problem(name: str) -> str:
    """Why an admin key cannot have this name; empty if it can."""
    if _ADMIN_NAME.fullmatch(name):
        return ""
    return (
        f"{name!r} cannot be an admin key's name; use up to 63 letters, digits and '.', '_', '@', "
        "'-', and begin with a letter or digit"
    )
