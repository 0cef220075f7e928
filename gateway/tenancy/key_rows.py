"""Keys and their rules between rows of the database and values. Knows no connection."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from gateway.networks import parse_network
from gateway.tenancy import schema
from gateway.tenancy.key_rules import KeyRules, KeyScope
from gateway.tenancy.tenants import KeyRecord

RECORD = [column for column in schema.keys.c if column is not schema.keys.c.digest]
"""What a record is read from: everything but the digest."""

RULES: list[sa.Column[Any]] = [schema.keys.c[name] for name in ("scopes", "models", "networks")]

_PLAIN = {column.name for column in RECORD} - {column.name for column in RULES}


def to_rules(row: sa.RowMapping) -> KeyRules:
    """The rules in a row."""
    networks = row["networks"]
    return KeyRules(
        scopes=frozenset(map(KeyScope, row["scopes"])),
        models=tuple(row["models"]),
        networks=None if networks is None else tuple(map(parse_network, networks)),
    )


def to_record(row: sa.RowMapping) -> KeyRecord:
    """The record in a row of the columns `RECORD`."""
    return KeyRecord(**{name: row[name] for name in _PLAIN}, rules=to_rules(row))
