"""Whose key a secret is: the look-up on every request's path, and the cache before it.

A key that was found good is believed for a second (`verified.py`); what was refused is looked up
each time. Knows nothing of how keys are issued, and no HTTP.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import schema
from gateway.tenancy.key_rows import RULES, to_rules
from gateway.tenancy.keys import check_form, digest
from gateway.tenancy.last_used import LastUsed
from gateway.tenancy.tenants import Principal, Tenant
from gateway.tenancy.verified import Verified

logger = logging.getLogger(__name__)

_LOOK_UP = sa.select(
    schema.tenants,
    schema.keys.c.key_id,
    schema.keys.c.expires_s,
    schema.keys.c.revoked_s,
    schema.keys.c.successor_id,
    *RULES,
).join_from(schema.keys, schema.tenants)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A key that was found good."""

    principal: Principal
    expires_s: float | None
    successor_id: str | None


class KeyCheck:
    """Tells whose key it is. Used concurrently, closed once."""

    def __init__(self, engine: AsyncEngine, pepper: bytes) -> None:
        self._engine = engine
        self._pepper = pepper
        self._last_used = LastUsed(engine, schema.keys)
        self._verified: Verified[_Key] = Verified()

    async def aclose(self) -> None:
        """Write down what was used. The engine stays open: it is not ours."""
        await self._last_used.aclose()

    def forget(self) -> None:
        """Believe nothing of before: something about keys or tenants has changed."""
        self._verified.forget()

    async def authenticate(self, secret: str, *, now_s: float) -> Principal:
        """Whose key this is. Neither a message nor a log line holds any of the secret.

        Raises:
            Unauthenticated: it is no key, or an unknown, revoked or expired one.
            Overloaded: the database failed.
        """
        check_form(secret)
        key_digest = digest(secret, self._pepper)
        key = self._verified.get(key_digest, now_s)
        if key is None:
            key = await self._look_up(key_digest)
            self._verified.remember(key_digest, key, now_s)
        if key.expires_s is not None and key.expires_s <= now_s:
            logger.info("refused key %s: expired", key.principal.key_id)
            raise Unauthenticated("This API key has expired; ask your operator for a new one.")
        self._note_use(key, now_s)
        return key.principal

    def _note_use(self, key: _Key, now_s: float) -> None:
        principal = key.principal
        if self._last_used.note(principal.key_id, now_s) and key.successor_id is not None:
            logger.warning(
                "tenant %s still uses key %s, which %s replaces; it ends in %.0f s",
                principal.tenant.name,
                principal.key_id,
                key.successor_id,
                (key.expires_s or now_s) - now_s,
            )

    async def _look_up(self, key_digest: bytes) -> _Key:
        query = _LOOK_UP.where(schema.keys.c.digest == key_digest)
        try:
            async with self._engine.connect() as connection:
                row = (await connection.execute(query)).mappings().one_or_none()
        except (OSError, SQLAlchemyError) as error:
            logger.exception("cannot look a key up")
            raise Overloaded("Keys cannot be checked at the moment; try again.") from error
        if row is None or row["revoked_s"] is not None:
            who = f"key {row['key_id']}: revoked" if row else "a key: unknown"
            logger.info("refused %s (digest %s)", who, key_digest.hex()[:12])
            raise Unauthenticated("Incorrect API key provided; ask your operator for a new one.")
        tenant = Tenant(**{column.name: row[column.name] for column in schema.tenants.c})
        if tenant.disabled_s is not None:
            logger.info("refused key %s: tenant %s is disabled", row["key_id"], tenant.name)
            raise Unauthenticated("This API key is disabled; ask your operator.")
        return _Key(
            principal=Principal(tenant=tenant, key_id=row["key_id"], rules=to_rules(row)),
            expires_s=row["expires_s"],
            successor_id=row["successor_id"],
        )
