"""Rules, rotation and last use of keys; tenants that are disabled; the pepper's fingerprint.

A key that was there before may do what it could: everything its plan allows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ALL_SCOPES = '["inference", "models", "tokenize"]'
ANY_MODEL = '["*"]'


def upgrade() -> None:
    """Add the columns, each with what old rows mean by it."""
    op.add_column("tenants", sa.Column("disabled_s", sa.Float))
    for column in (
        sa.Column("description", sa.String, nullable=False, server_default=""),
        sa.Column("scopes", sa.JSON, nullable=False, server_default=ALL_SCOPES),
        sa.Column("models", sa.JSON, nullable=False, server_default=ANY_MODEL),
        sa.Column("networks", sa.JSON),
        sa.Column("successor_id", sa.String),
        sa.Column("last_used_s", sa.Float),
    ):
        op.add_column("keys", column)
    op.create_index("keys_of_tenant", "keys", ["tenant_id"])
    op.create_table(
        "pepper",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fingerprint", sa.LargeBinary, nullable=False),
    )
