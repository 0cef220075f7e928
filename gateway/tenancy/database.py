"""Who exists: tenants and their keys, in a SQL database. The only place that looks keys up.

The file is `turnout.db` in the home directory, and beside it `pepper`, without which the stored
digests are worthless: both are their owner's alone, and belong in the same backup. All times are
Unix seconds and come from the caller. Knows no HTTP, and of a plan only its name.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import schema
from gateway.tenancy.keys import ENTROPY_BYTES, digest, hint, mint, well_formed
from gateway.tenancy.schema import DirectoryError
from gateway.tenancy.tenants import KeyRecord, Principal, Tenant

logger = logging.getLogger(__name__)

CACHE_TTL_S = 1.0
"""How late a revocation may be seen. A look-up takes 660 us, a cached one 8 us."""

CACHE_ENTRIES = 4096
"""Keys in use at the same second that cost no look-up; about 2 MB."""

_BUSY_TIMEOUT_S = 5.0  # another process's write takes milliseconds

_TENANT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

_RECORD = [column for column in schema.keys.c if column is not schema.keys.c.digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    """A key that was found good at `at_s`."""

    principal: Principal
    expires_s: float | None
    at_s: float


class Directory:
    """Tenants and keys. Made by `open`, used concurrently, closed once."""

    def __init__(self, engine: AsyncEngine, pepper: bytes, entropy: Callable[[int], bytes]) -> None:
        self._engine = engine
        self._pepper = pepper
        self._entropy = entropy
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()  # oldest first

    @classmethod
    async def open(
        cls, home: Path, *, entropy: Callable[[int], bytes] = secrets.token_bytes
    ) -> Directory:
        """Open the directory in `home`, or create it. `entropy` gives so many random bytes.

        Raises:
            DirectoryError: the files cannot be used; the message says why.
        """
        path = home / "turnout.db"
        try:
            pepper = await asyncio.to_thread(schema.prepare, path, home / "pepper", entropy)
        except (OSError, SQLAlchemyError) as error:
            raise DirectoryError(f"cannot open {path}: {error}") from error
        engine = create_async_engine(
            sa.URL.create("sqlite+aiosqlite", database=str(path)),
            connect_args={"timeout": _BUSY_TIMEOUT_S},
        )
        return cls(engine, pepper, entropy)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._engine.dispose()

    async def create_tenant(self, name: str, *, plan: str) -> Tenant:
        """Add a tenant.

        Raises:
            DirectoryError: the name is taken, or not of the form that policies can match.
        """
        if not _TENANT_NAME.fullmatch(name):
            raise DirectoryError(
                f"{name!r} cannot be a tenant's name; use up to 63 lower-case letters, digits and "
                "'.', '_', '-', and begin with a letter or digit"
            )
        tenant = Tenant(tenant_id=self._new_id("tenant"), name=name, plan=plan)
        try:
            async with self._engine.begin() as connection:
                await connection.execute(schema.tenants.insert().values(asdict(tenant)))
        except IntegrityError:
            raise DirectoryError(f"there is a tenant {name!r} already") from None
        return tenant

    async def tenants(self) -> tuple[Tenant, ...]:
        """All tenants, by name."""
        query = sa.select(schema.tenants).order_by(schema.tenants.c.name)
        return tuple(Tenant(**row) for row in await self._rows(query))

    async def tenant(self, name: str) -> Tenant:
        """One tenant.

        Raises:
            DirectoryError: there is none of this name.
        """
        rows = await self._rows(sa.select(schema.tenants).where(schema.tenants.c.name == name))
        if not rows:
            raise DirectoryError(
                f"there is no tenant {name!r}; create it with 'turnout tenants create {name}'"
            )
        return Tenant(**rows[0])

    async def create_key(
        self, tenant_name: str, *, name: str, now_s: float, expires_s: float | None = None
    ) -> tuple[str, KeyRecord]:
        """Issue a key. The secret is returned this once and stored nowhere.

        Raises:
            DirectoryError: there is no such tenant.
        """
        tenant = await self.tenant(tenant_name)
        secret = mint(self._entropy(ENTROPY_BYTES))
        record = KeyRecord(
            key_id=self._new_id("key"),
            tenant_id=tenant.tenant_id,
            name=name,
            hint=hint(secret),
            created_s=now_s,
            expires_s=expires_s,
            revoked_s=None,
        )
        row = {**asdict(record), "digest": digest(secret, self._pepper)}
        async with self._engine.begin() as connection:
            await connection.execute(schema.keys.insert().values(row))
        return secret, record

    async def keys(self, tenant_name: str | None = None) -> tuple[KeyRecord, ...]:
        """The keys of one tenant, or all; oldest first.

        Raises:
            DirectoryError: there is no such tenant.
        """
        query = sa.select(*_RECORD).order_by(schema.keys.c.created_s, schema.keys.c.key_id)
        if tenant_name is not None:
            tenant = await self.tenant(tenant_name)
            query = query.where(schema.keys.c.tenant_id == tenant.tenant_id)
        return tuple(KeyRecord(**row) for row in await self._rows(query))

    async def revoke_key(self, key_id: str, *, now_s: float) -> KeyRecord:
        """Close a key for good: at once in this process, within `CACHE_TTL_S` in others.

        A key that is revoked already keeps the time of the first revocation.

        Raises:
            DirectoryError: there is no such key.
        """
        statement = (
            schema.keys.update()
            .where(schema.keys.c.key_id == key_id)
            .values(revoked_s=sa.func.coalesce(schema.keys.c.revoked_s, now_s))
            .returning(*_RECORD)
        )
        async with self._engine.begin() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        if row is None:
            raise DirectoryError(f"there is no key {key_id!r}; 'turnout keys list' shows all")
        self._verified.clear()
        return KeyRecord(**row)

    async def authenticate(self, secret: str, *, now_s: float) -> Principal:
        """Whose key this is. Neither a message nor a log line holds any of the secret.

        Raises:
            Unauthenticated: it is no key, or an unknown, revoked or expired one.
            Overloaded: the database failed.
        """
        if not well_formed(secret):
            raise Unauthenticated("The API key sent is not a whole key; copy it once more.")
        key_digest = digest(secret, self._pepper)
        verified = self._verified.get(key_digest)
        # Not below 0 either: when the clock steps back, an entry must not live for longer.
        if verified is None or not 0 <= now_s - verified.at_s < CACHE_TTL_S:
            verified = await self._look_up(key_digest, now_s)
            self._remember(key_digest, verified)
        if verified.expires_s is not None and verified.expires_s <= now_s:
            logger.info("refused key %s: expired", verified.principal.key_id)
            raise Unauthenticated("This API key has expired; ask your operator for a new one.")
        return verified.principal

    async def _look_up(self, key_digest: bytes, now_s: float) -> _Verified:
        columns = (schema.keys.c.key_id, schema.keys.c.expires_s, schema.keys.c.revoked_s)
        query = (
            sa.select(schema.tenants, *columns)
            .join_from(schema.keys, schema.tenants)
            .where(schema.keys.c.digest == key_digest)
        )
        try:
            rows = await self._rows(query)
        except SQLAlchemyError as error:
            logger.exception("cannot look a key up")
            raise Overloaded("Keys cannot be checked at the moment; try again.") from error
        if not rows or rows[0]["revoked_s"] is not None:
            who = f"key {rows[0]['key_id']}: revoked" if rows else "a key: unknown"
            logger.info("refused %s (digest %s)", who, key_digest.hex()[:12])
            raise Unauthenticated("Incorrect API key provided; ask your operator for a new one.")
        row = rows[0]
        tenant = Tenant(tenant_id=row["tenant_id"], name=row["name"], plan=row["plan"])
        principal = Principal(tenant=tenant, key_id=row["key_id"])
        return _Verified(principal=principal, expires_s=row["expires_s"], at_s=now_s)

    def _remember(self, key_digest: bytes, verified: _Verified) -> None:
        self._verified[key_digest] = verified
        self._verified.move_to_end(key_digest)
        if len(self._verified) > CACHE_ENTRIES:
            self._verified.popitem(last=False)

    async def _rows(self, query: sa.Executable) -> Sequence[sa.RowMapping]:
        async with self._engine.connect() as connection:
            return (await connection.execute(query)).mappings().all()

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._entropy(6).hex()}"
