"""Brings the directory's tables to the form this version knows, with Alembic. Blocks.

The caller holds the database's lock and a transaction: of several processes that open a directory
at once, one migrates and the others find it done. Knows no queries and no files.
"""

from __future__ import annotations

import threading
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from gateway.tenancy.schema import DirectoryError, keys, tenants

MIGRATIONS = Path(__file__).parent / "migrations"

BASELINE = "0001"
"""What a file has whose version is still written in a table of our own, `schema_version`."""

VERSION_TABLE = "turnout_schema"  # not alembic's own name, which others in the database may use

_one_at_a_time = threading.Lock()  # alembic's `op` and `context` are globals of the process


def migrate(connection: sa.Connection) -> None:
    """Upgrade the tables, or make them; does nothing where they are right already.

    Raises:
        DirectoryError: the database is of a newer Turnout, or somebody else's.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    with _one_at_a_time:
        current = _current(connection)
        if current == scripts.get_current_head():
            return
        if current is not None and current not in {
            one.revision for one in scripts.walk_revisions()
        }:
            raise _too_new(current, scripts.get_current_head())
        config.attributes["connection"] = connection
        if current is None:
            _adopt(connection, config)
        command.upgrade(config, "head")


def _current(connection: sa.Connection) -> str | None:
    options = {"version_table": VERSION_TABLE}
    return MigrationContext.configure(connection, opts=options).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["version_table"] = VERSION_TABLE
    return config


def _adopt(connection: sa.Connection, config: Config) -> None:
    """Take over a file from before Alembic; see that there is nothing of others in our way."""
    names = set(sa.inspect(connection).get_table_names())
    if "schema_version" in names:
        version = connection.exec_driver_sql("SELECT version FROM schema_version").scalar_one()
        if version != 1:
            raise _too_new(f"{version}", BASELINE)
        connection.exec_driver_sql("DROP TABLE schema_version")
        command.stamp(config, BASELINE)
    elif ours := names & {tenants.name, keys.name}:
        raise DirectoryError(
            f"there is a table {min(ours)!r} in it already that Turnout did not make; "
            "give Turnout a database of its own"
        )


def _too_new(found: str, known: str | None) -> DirectoryError:
    return DirectoryError(
        f"it has schema version {found}, this Turnout knows {known}; upgrade Turnout"
    )
