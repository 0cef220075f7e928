"""Who exists: tenants and their keys, in a SQL database. The only place that changes them.

By default the database is `turnout.db` in the home directory, and beside it lies `pepper`, without
which the stored digests are worthless: both are their owner's alone, and belong in the same backup.
All times are Unix seconds and come from the caller. Knows no HTTP, and of a plan only its name.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.config import Settings
from gateway.tenancy import schema, storage
from gateway.tenancy.admin_keys import AdminKeys
from gateway.tenancy.key_check import KeyCheck
from gateway.tenancy.key_rows import RECORD, to_record
from gateway.tenancy.key_rules import KeyRules
from gateway.tenancy.keys import ENTROPY_BYTES, digest, hint, mint
from gateway.tenancy.schema import (
    DirectoryError,
    KeyEnded,
    TenantExists,
    TenantInUse,
    UnknownKey,
    UnknownTenant,
)
from gateway.tenancy.storage import SQLITE
from gateway.tenancy.tenant_check import TenantCheck
from gateway.tenancy.tenants import KeyRecord, Principal, Tenant, tenant_name_problem

_ANY_USE = KeyRules()


class Directory:
    """Tenants and keys. Made by `open`, used concurrently, closed once.

    `admin_keys` are those of operators.

    What is changed here is seen at once in this process, and within a second in others.
    """

    def __init__(self, engine: AsyncEngine, pepper: bytes, entropy: Callable[[int], bytes]) -> None:
        self._engine = engine
        self._pepper = pepper
        self._entropy = entropy
        self._check = KeyCheck(engine, pepper)
        self._tenant_check = TenantCheck(engine)
        self.admin_keys = AdminKeys(engine, pepper, entropy)

    @classmethod
    async def open(
        cls,
        home: Path,
        *,
        database: str = SQLITE,
        password_file: Path | None = None,
        pepper_file: Path | None = None,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Directory:
        """Open the directory of `home`, or create it. `entropy` gives so many random bytes.

        Raises:
            DirectoryError: it cannot be used; the message says why.
        """
        place = storage.storage_of(home, database, password_file, pepper_file)
        pepper = await asyncio.to_thread(storage.prepare, place, entropy)
        return cls(storage.open_engine(place), pepper, entropy)

    async def aclose(self) -> None:
        """Write down what is pending, and close all connections. Idempotent."""
        await self._check.aclose()
        await self.admin_keys.aclose()
        await self._engine.dispose()

    async def authenticate(self, secret: str, *, now_s: float) -> Principal:
        """Whose key this is; see `KeyCheck.authenticate`."""
        return await self._check.authenticate(secret, now_s=now_s)

    async def active_tenant(self, name: str, *, now_s: float) -> Tenant:
        """A tenant that is not disabled; see `TenantCheck.active_tenant`."""
        return await self._tenant_check.active_tenant(name, now_s=now_s)

    def pseudonym(self, text: str) -> str:
        """16 characters that always stand for this text, and that nobody without the pepper can
        check a guess against.
        """
        return digest(text, self._pepper).hex()[:16]

    async def create_tenant(self, name: str, *, plan: str) -> Tenant:
        """Add a tenant.

        Raises:
            TenantExists: the name is taken.
            DirectoryError: it is not of the form that policies can match.
        """
        if problem := tenant_name_problem(name):
            raise DirectoryError(problem)
        tenant = Tenant(tenant_id=self._new_id("tenant"), name=name, plan=plan)
        try:
            async with self._engine.begin() as connection:
                await connection.execute(schema.tenants.insert().values(asdict(tenant)))
        except IntegrityError:
            raise TenantExists(f"there is a tenant {name!r} already") from None
        return tenant

    async def tenants(self, *, after: str = "", limit: int | None = None) -> tuple[Tenant, ...]:
        """Tenants by name: all, or `limit` of those behind the name `after`."""
        name = schema.tenants.c.name
        query = sa.select(schema.tenants).where(name > after).order_by(name).limit(limit)
        return tuple(Tenant(**row) for row in await self._rows(query))

    async def tenant(self, name: str) -> Tenant:
        """One tenant.

        Raises:
            UnknownTenant: there is none of this name.
        """
        rows = await self._rows(sa.select(schema.tenants).where(schema.tenants.c.name == name))
        if not rows:
            raise _no_tenant(name)
        return Tenant(**rows[0])

    async def tenant_of(self, key: KeyRecord) -> Tenant:
        """Whose key it is.

        Raises:
            UnknownTenant: it was deleted meanwhile, and its keys with it.
        """
        its = schema.tenants.c.tenant_id == key.tenant_id
        rows = await self._rows(sa.select(schema.tenants).where(its))
        if not rows:
            raise _no_tenant(key.tenant_id)
        return Tenant(**rows[0])

    async def set_plan(self, name: str, plan: str) -> Tenant:
        """Put a tenant on another plan.

        Raises:
            UnknownTenant: there is no such tenant.
        """
        return await self._update_tenant(name, plan=plan)

    async def disable_tenant(self, name: str, *, now_s: float) -> Tenant:
        """Close every key of a tenant until `enable_tenant`; the first time of it is kept.

        Raises:
            UnknownTenant: there is no such tenant.
        """
        first_s = sa.func.coalesce(schema.tenants.c.disabled_s, now_s)
        return await self._update_tenant(name, disabled_s=first_s)

    async def enable_tenant(self, name: str) -> Tenant:
        """Undo `disable_tenant`.

        Raises:
            UnknownTenant: there is no such tenant.
        """
        return await self._update_tenant(name, disabled_s=None)

    async def delete_tenant(self, name: str) -> Tenant:
        """Remove a disabled tenant and all its keys, for good.

        Raises:
            UnknownTenant: there is no such tenant.
            TenantInUse: it is not disabled.
        """
        tenant = await self.tenant(name)
        if tenant.disabled_s is None:
            raise TenantInUse(
                f"tenant {name!r} is in use",
                remedy=f"disable it first with 'turnout tenants disable {name}'",
            )
        async with self._engine.begin() as connection:
            for table in (schema.keys, schema.tenants):  # in this order: keys refer to tenants
                is_its = table.c.tenant_id == tenant.tenant_id
                await connection.execute(table.delete().where(is_its))
        self._forget()
        return tenant

    async def create_key(
        self,
        tenant_name: str,
        *,
        name: str,
        now_s: float,
        expires_s: float | None = None,
        description: str = "",
        rules: KeyRules = _ANY_USE,
    ) -> tuple[str, KeyRecord]:
        """Issue a key. The secret is returned this once and stored nowhere.

        Raises:
            UnknownTenant: there is no such tenant.
        """
        tenant = await self.tenant(tenant_name)
        secret = mint(self._entropy(ENTROPY_BYTES))
        record = KeyRecord(
            key_id=self._new_id("key"),
            tenant_id=tenant.tenant_id,
            name=name,
            description=description,
            hint=hint(secret),
            created_s=now_s,
            expires_s=expires_s,
            revoked_s=None,
            successor_id=None,
            last_used_s=None,
            rules=rules,
        )
        async with self._engine.begin() as connection:
            await self._insert_key(connection, record, secret)
        return secret, record

    async def keys(
        self, tenant_name: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> tuple[KeyRecord, ...]:
        """The keys of one tenant, or of all; oldest first. All of them, or `limit` behind `after`.

        Raises:
            UnknownTenant: there is no such tenant.
            UnknownKey: there is no key of the id `after`.
        """
        order = (schema.keys.c.created_s, schema.keys.c.key_id)
        query = sa.select(*RECORD).order_by(*order).limit(limit)
        if after is not None:
            last = await self.key(after)
            query = query.where(sa.tuple_(*order) > sa.tuple_(last.created_s, last.key_id))
        if tenant_name is not None:
            tenant = await self.tenant(tenant_name)
            query = query.where(schema.keys.c.tenant_id == tenant.tenant_id)
        return tuple(map(to_record, await self._rows(query)))

    async def key(self, key_id: str) -> KeyRecord:
        """One key.

        Raises:
            UnknownKey: there is none of this id.
        """
        rows = await self._rows(sa.select(*RECORD).where(schema.keys.c.key_id == key_id))
        if not rows:
            raise _no_key(key_id)
        return to_record(rows[0])

    async def rotate_key(
        self, key_id: str, *, overlap_s: float, now_s: float, expires_s: float | None = None
    ) -> tuple[str, KeyRecord]:
        """Issue a key like another, which ends when `overlap_s` is over, or earlier if it was to.

        Without `expires_s` the successor lives as long as its predecessor was made for.

        Raises:
            UnknownKey: there is no such key.
            KeyEnded: it opens nothing, or was rotated already.
        """
        old = await self.key(key_id)
        if expires_s is None and old.expires_s is not None:
            expires_s = now_s + (old.expires_s - old.created_s)
        secret = mint(self._entropy(ENTROPY_BYTES))
        successor = replace(
            old,
            key_id=self._new_id("key"),
            hint=hint(secret),
            created_s=now_s,
            expires_s=expires_s,
            last_used_s=None,
        )
        retirement = _retirement(key_id, successor.key_id, now_s=now_s, ends_s=now_s + overlap_s)
        async with self._engine.begin() as connection:
            is_retired = (await connection.execute(retirement)).rowcount == 1
            if is_retired:
                await self._insert_key(connection, successor, secret)
        if not is_retired:
            raise _not_to_be_rotated(await self.key(key_id))
        self._forget()
        return secret, successor

    async def revoke_key(self, key_id: str, *, now_s: float) -> KeyRecord:
        """Close a key for good; one that is closed already keeps the time of the first revocation.

        Raises:
            UnknownKey: there is no such key.
        """
        statement = (
            schema.keys.update()
            .where(schema.keys.c.key_id == key_id)
            .values(revoked_s=sa.func.coalesce(schema.keys.c.revoked_s, now_s))
            .returning(*RECORD)
        )
        async with self._engine.begin() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        if row is None:
            raise _no_key(key_id)
        self._forget()
        return to_record(row)

    async def _update_tenant(self, name: str, **values: object) -> Tenant:
        statement = (
            schema.tenants.update()
            .where(schema.tenants.c.name == name)
            .values(**values)
            .returning(*schema.tenants.c)
        )
        async with self._engine.begin() as connection:
            row = (await connection.execute(statement)).mappings().one_or_none()
        if row is None:
            raise _no_tenant(name)
        self._forget()
        return Tenant(**row)

    async def _insert_key(
        self, connection: AsyncConnection, record: KeyRecord, secret: str
    ) -> None:
        row = {**record.to_dict(), "digest": digest(secret, self._pepper)}
        await connection.execute(schema.keys.insert().values(row))

    def _forget(self) -> None:
        """Believe nothing of before: something about keys or tenants has changed."""
        self._check.forget()
        self._tenant_check.forget()

    async def _rows(self, query: sa.Executable) -> Sequence[sa.RowMapping]:
        async with self._engine.connect() as connection:
            return (await connection.execute(query)).mappings().all()

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._entropy(6).hex()}"


async def open_directory(settings: Settings) -> Directory:
    """The directory that the settings name.

    Raises:
        DirectoryError: it cannot be used; the message says why.
    """
    return await Directory.open(
        settings.home,
        database=settings.database,
        password_file=settings.database_password_file,
        pepper_file=settings.pepper_file,
    )


def _no_tenant(name: str) -> UnknownTenant:
    return UnknownTenant(
        f"there is no tenant {name!r}", remedy=f"create it with 'turnout tenants create {name}'"
    )


def _no_key(key_id: str) -> UnknownKey:
    return UnknownKey(f"there is no key {key_id!r}", remedy="'turnout keys list' shows all")


def _retirement(key_id: str, successor_id: str, *, now_s: float, ends_s: float) -> sa.Update:
    """Sets a successor and an end, if the key is good and has none: of two at once, one does."""
    columns = schema.keys.c
    return (
        schema.keys.update()
        .where(columns.key_id == key_id)
        .where(columns.revoked_s.is_(None), columns.successor_id.is_(None))
        .where(sa.or_(columns.expires_s.is_(None), columns.expires_s > now_s))
        .values(
            successor_id=successor_id,
            expires_s=sa.case((columns.expires_s < ends_s, columns.expires_s), else_=ends_s),
        )
    )


def _not_to_be_rotated(key: KeyRecord) -> KeyEnded:
    if key.revoked_s is None and key.successor_id is not None:
        return KeyEnded(
            f"key {key.key_id!r} was replaced by {key.successor_id!r} already",
            remedy="rotate that one",
        )
    state = "expired" if key.revoked_s is None else "revoked"
    return KeyEnded(f"key {key.key_id!r} is {state}", remedy="issue one with 'turnout keys create'")
