"""The directory's tables as this version knows them. How they are made: `migrations`.

Knows no queries.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False, unique=True),
    sa.Column("plan", sa.String, nullable=False),
    sa.Column("disabled_s", sa.Float),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key_id", sa.String, primary_key=True),
    sa.Column("tenant_id", sa.String, sa.ForeignKey(tenants.c.tenant_id), nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("hint", sa.String, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("expires_s", sa.Float),
    sa.Column("revoked_s", sa.Float),
    sa.Column("description", sa.String, nullable=False),
    sa.Column("scopes", sa.JSON, nullable=False),
    sa.Column("models", sa.JSON, nullable=False),
    sa.Column("networks", sa.JSON(none_as_null=True)),
    sa.Column("successor_id", sa.String),
    sa.Column("last_used_s", sa.Float),
    sa.Index("keys_of_tenant", "tenant_id"),
)

admin_keys = sa.Table(
    "admin_keys",
    metadata,
    sa.Column("key_id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("scope", sa.String, nullable=False),
    sa.Column("hint", sa.String, nullable=False),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("created_s", sa.Float, nullable=False),
    sa.Column("expires_s", sa.Float),
    sa.Column("revoked_s", sa.Float),
    sa.Column("last_used_s", sa.Float),
)

pepper = sa.Table(
    "pepper",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # one row: 1
    sa.Column("fingerprint", sa.LargeBinary, nullable=False),
)


class DirectoryError(Exception):
    """What was asked of the directory cannot be done; the message says what to do instead.

    `what` is the message without the remedy, which is for those who have the command.
    """

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what


class UnknownTenant(DirectoryError):
    """There is none of this name."""


class UnknownKey(DirectoryError):
    """There is none of this id."""


class TenantExists(DirectoryError):
    """The name is taken."""


class TenantInUse(DirectoryError):
    """It is not disabled, and so is not deleted."""


class KeyEnded(DirectoryError):
    """It opens nothing any more, or was rotated already: it is not rotated."""
