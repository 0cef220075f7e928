"""Tenants and keys as frozen values. Knows no database and no policy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from gateway.tenancy.key_rules import KeyRules

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


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


def tenant_name_problem(name: str) -> str:
    """Why policies could not match a tenant of this name; empty if they can."""
    if _NAME.fullmatch(name):
        return ""
    return (
        f"{name!r} cannot be a tenant's name; use up to 63 lower-case letters, digits and "
        "'.', '_', '-', and begin with a letter or digit"
    )
