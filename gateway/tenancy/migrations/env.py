"""What Alembic runs for every upgrade: on the caller's connection, inside the caller's transaction.

Loaded by Alembic by its path, never imported.
"""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
)
context.run_migrations()
