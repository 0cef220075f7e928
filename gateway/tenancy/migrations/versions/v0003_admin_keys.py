"""Keys of operators, which open the admin API and nothing else."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create their table."""
    op.create_table(
        "admin_keys",
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
