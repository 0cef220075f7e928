"""The pepper: a file of random bytes that turn keys into digests. Without it none can be checked.

It lies beside the database, not in it: who reads only one of the two learns nothing. The database
keeps a fingerprint, so that a pepper that is lost or another host's is refused at once, and not
noticed by keys that open nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from gateway.stores.create_once import create_once
from gateway.tenancy.schema import DirectoryError, keys, pepper as table

PEPPER_BYTES = 32  # as long as the digest; RFC 2104 advises no less

_REMEDY = (
    "restore it from your backup, or copy it from the host that made the directory; "
    "or start with an empty database and issue new keys"
)


def settle(connection: sa.Connection, path: Path, entropy: Callable[[int], bytes]) -> bytes:
    """The pepper of this database, made with it. The caller holds the database's lock. Blocks.

    Raises:
        DirectoryError: the file is not the one that this database's keys were hashed with.
        OSError: it cannot be read or written.
    """
    stored = connection.execute(sa.select(table.c.fingerprint)).scalar_one_or_none()
    if not path.exists() and (stored is not None or _any_key(connection)):
        raise DirectoryError(
            f"the pepper {path} is gone, and without it no key can be checked; {_REMEDY}"
        )
    create_once(path, lambda draft: _write(draft, entropy(PEPPER_BYTES)))
    content = path.read_bytes()
    if len(content) < PEPPER_BYTES:
        raise DirectoryError(
            f"the pepper {path} has {len(content)} bytes, it needs {PEPPER_BYTES} random ones"
        )
    fingerprint = hmac.digest(content, b"turnout pepper", hashlib.sha256)
    if stored is None:
        connection.execute(table.insert().values(id=1, fingerprint=fingerprint))
    elif not hmac.compare_digest(stored, fingerprint):
        raise DirectoryError(f"the pepper {path} is not the one its keys were made with; {_REMEDY}")
    return content


def _any_key(connection: sa.Connection) -> bool:
    return bool(connection.execute(sa.select(sa.exists(sa.select(keys.c.key_id)))).scalar_one())


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
