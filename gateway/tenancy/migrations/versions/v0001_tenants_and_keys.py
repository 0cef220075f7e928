"""Tenants and keys: the tables of files that have a `schema_version` of 1."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "tenants",
        sa.Column("tenant_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("plan", sa.String, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String, primary_key=True),
        sa.Column("tenant_id", sa.String, sa.ForeignKey("tenants.tenant_id"), nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("hint", sa.String, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float),
        sa.Column("revoked_s", sa.Float),
    )
