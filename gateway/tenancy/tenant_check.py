"""Which tenant a name means, for those who are known by it and have no key; with a cache before it.

An active tenant is believed for a second (`verified.py`); what was refused is looked up each time.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import schema
from gateway.tenancy.tenants import Tenant, tenant_name_problem
from gateway.tenancy.verified import Verified

logger = logging.getLogger(__name__)


class TenantCheck:
    """Finds active tenants by name. Used concurrently."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._verified: Verified[Tenant] = Verified()

    def forget(self) -> None:
        """Believe nothing of before: something about tenants has changed."""
        self._verified.forget()

    async def active_tenant(self, name: str, *, now_s: float) -> Tenant:
        """The tenant of that name, if it is there and not disabled.

        Raises:
            Unauthenticated: it is not.
            Overloaded: the database failed.
        """
        if tenant_name_problem(name):  # before it is a key of the cache
            raise Unauthenticated(f"{name!r:.60} is no tenant here; ask your operator.")
        tenant = self._verified.get(name.encode(), now_s)
        if tenant is None:
            tenant = await self._look_up(name)
            self._verified.remember(name.encode(), tenant, now_s)
        return tenant

    async def _look_up(self, name: str) -> Tenant:
        query = sa.select(schema.tenants).where(schema.tenants.c.name == name)
        try:
            async with self._engine.connect() as connection:
                row = (await connection.execute(query)).mappings().one_or_none()
        except (OSError, SQLAlchemyError) as error:
            logger.exception("cannot look a tenant up")
            raise Overloaded("Tenants cannot be looked up at the moment; try again.") from error
        if row is None:
            raise Unauthenticated(f"{name!r} is no tenant here; ask your operator.")
        tenant = Tenant(**row)
        if tenant.disabled_s is not None:
            raise Unauthenticated(f"Tenant {name!r} is disabled; ask your operator.")
        return tenant
