"""The directory's tables, and its two files on disk: the database and the pepper.

Tables are made together with the file, so a database without them is not ours. Knows no queries.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from gateway.stores.create_once import create_once

SCHEMA_VERSION = 1

PEPPER_BYTES = 32  # as long as the digest; RFC 2104 advises no less

metadata = sa.MetaData()

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer))

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("tenant_id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False, unique=True),
    sa.Column("plan", sa.String, nullable=False),
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
)


class DirectoryError(Exception):
    """What was asked of the directory cannot be done; the message says what to do instead."""


def prepare(database: Path, pepper: Path, entropy: Callable[[int], bytes]) -> bytes:
    """Make sure both files exist and fit, and return the pepper. Blocks.

    Raises:
        DirectoryError: the database is of a newer version, or its pepper is lost.
        OSError, sqlalchemy.exc.SQLAlchemyError: a file cannot be read or written.
    """
    create_once(database, _fill)
    version, has_keys = _inspect(database)
    if version != SCHEMA_VERSION:
        raise DirectoryError(
            f"{database} has schema version {version}, this Turnout knows {SCHEMA_VERSION}; "
            "upgrade Turnout"
        )
    if has_keys and not pepper.exists():  # in this order: the first key comes after the pepper
        raise DirectoryError(
            f"{pepper} is gone, and without it no key in {database} can be checked; restore it "
            "from your backup, or move the database away and issue new keys"
        )
    create_once(pepper, lambda draft: _write(draft, entropy(PEPPER_BYTES)))
    return pepper.read_bytes()


def _engine(database: Path) -> sa.Engine:
    return sa.create_engine(sa.URL.create("sqlite", database=str(database)), poolclass=NullPool)


def _fill(draft: Path) -> None:
    with _engine(draft).begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        metadata.create_all(connection)
        connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))


def _inspect(database: Path) -> tuple[int, bool]:
    """The schema version, and whether any key was ever issued."""
    with _engine(database).connect() as connection:
        version = connection.execute(sa.select(schema_version.c.version)).scalar_one()
        has_keys = connection.execute(sa.select(sa.exists(sa.select(keys.c.key_id)))).scalar_one()
    return version, bool(has_keys)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
