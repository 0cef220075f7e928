"""The keys that open the admin API: issued, listed, revoked, and told from all others.

They are made and stored as tenants' keys are, in a table of their own: nothing that is done with
the one kind can touch the other. Knows no HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy.keys import ADMIN_PREFIX, ENTROPY_BYTES, check_form, digest, hint, mint
from gateway.tenancy.last_used import LastUsed
from gateway.tenancy.schema import DirectoryError, UnknownKey, admin_keys
from gateway.tenancy.tenants import AdminKey, AdminScope, admin_name_problem
from gateway.tenancy.verified import Verified

logger = logging.getLogger(__name__)

_COLUMNS = [column for column in admin_keys.c if column is not admin_keys.c.digest]


class AdminKeys:
    """All admin keys of a directory, which closes them. Used concurrently.

    What is changed here is seen at once in this process, and within a second in others.
    """

    def __init__(self, engine: AsyncEngine, pepper: bytes, entropy: Callable[[int], bytes]) -> None:
        self._engine = engine
        self._pepper = pepper
        self._entropy = entropy
        self._last_used = LastUsed(engine, admin_keys)
        self._verified: Verified[AdminKey] = Verified()

    async def aclose(self) -> None:
        """Write down what was used. The engine stays open: it is not ours."""
        await self._last_used.aclose()

    async def authenticate(self, secret: str, *, now_s: float) -> AdminKey:
        """Which key this is. Neither a message nor a log line holds any of the secret.

        Raises:
            Unauthenticated: it is no admin key, or an unknown, revoked or expired one.
            Overloaded: the database failed.
        """
        check_form(secret, ADMIN_PREFIX)
        key_digest = digest(secret, self._pepper)
        key = self._verified.get(key_digest, now_s)
        if key is None:
            key = await self._look_up(key_digest)
            self._verified.remember(key_digest, key, now_s)
        if key.expires_s is not None and key.expires_s <= now_s:
            logger.info("refused admin key %s: expired", key.key_id)
            raise Unauthenticated("This admin key has expired; issue a new one.")
        self._last_used.note(key.key_id, now_s)
        return key

    async def create(
        self, name: str, *, scope: AdminScope, now_s: float, expires_s: float | None = None
    ) -> tuple[str, AdminKey]:
        """Issue a key. The secret is returned this once and stored nowhere.

        Raises:
            DirectoryError: the name cannot stand in an audit line.
        """
        if problem := admin_name_problem(name):
            raise DirectoryError(problem)
        secret = mint(self._entropy(ENTROPY_BYTES), ADMIN_PREFIX)
        key = AdminKey(
            key_id=f"admin_{self._entropy(6).hex()}",
            name=name,
            scope=scope,
            hint=hint(secret),
            created_s=now_s,
            expires_s=expires_s,
            revoked_s=None,
            last_used_s=None,
        )
        row = {**asdict(key), "scope": scope.value, "digest": digest(secret, self._pepper)}
        async with self._engine.begin() as connection:
            await connection.execute(admin_keys.insert().values(row))
        return secret, key

    async def all(self) -> tuple[AdminKey, ...]:
        """Every admin key, oldest first."""
        query = sa.select(*_COLUMNS).order_by(admin_keys.c.created_s, admin_keys.c.key_id)
        async with self._engine.connect() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return tuple(map(_to_key, rows))

    async def revoke(self, key_id: str, *, now_s: float) -> AdminKey:
        """Close a key for good; one that is closed already keeps the time of the first revocation.

        Raises:
            UnknownKey: there is no such admin key.
        """
        statement = (
            admin_keys.update()
            .where(admin_keys.c.key_id == key_id)
            .values(revoked_s=sa.func.coalesce(admin_keys.c.revoked_s, now_s))
            .returning(*_COLUMNS)
        )
        async with self._engine.begin() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        if row is None:
            raise UnknownKey(
                f"there is no admin key {key_id!r}", remedy="'turnout admin-keys list' shows all"
            )
        self._verified.forget()
        return _to_key(row)

    async def _look_up(self, key_digest: bytes) -> AdminKey:
        query = sa.select(*_COLUMNS).where(admin_keys.c.digest == key_digest)
        try:
            async with self._engine.connect() as connection:
                row = (await connection.execute(query)).mappings().one_or_none()
        except (OSError, SQLAlchemyError) as error:
            logger.exception("cannot look an admin key up")
            raise Overloaded("Keys cannot be checked at the moment; try again.") from error
        if row is None or row["revoked_s"] is not None:
            who = f"admin key {row['key_id']}: revoked" if row else "an admin key: unknown"
            logger.info("refused %s (digest %s)", who, key_digest.hex()[:12])
            raise Unauthenticated("Incorrect admin key provided; issue a new one.")
        return _to_key(row)


def _to_key(row: sa.RowMapping) -> AdminKey:
    values = dict(row)
    return AdminKey(scope=AdminScope(values.pop("scope")), **values)
