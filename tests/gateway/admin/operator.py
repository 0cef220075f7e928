"""An operator at a gateway in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway.tenancy.tenants import AdminScope
from tests.gateway.serving import Caller, Gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Asks with an admin key that may write."""

    gateway: Gateway
    key: str
    key_id: str

    async def ask(self, method: str, path: str, body: object = b"") -> Caller:
        """Send a request to the admin API."""
        headers = {"authorization": f"Bearer {self.key}"}
        return await self.gateway.call(f"/admin/v1{path}", body, method=method, headers=headers)

    async def refused(
        self, method: str, path: str, body: object = b"", *, status: int, code: str | None
    ) -> str:
        """The message of an error that has to come, with this status and code."""
        answer = await self.ask(method, path, body)
        error = answer.json()["error"]
        assert (answer.status, error["code"]) == (status, code)
        assert answer.response_headers["cache-control"] == "no-store"
        message: str = error["message"]
        return message


async def operator_of(gateway: Gateway) -> Operator:
    """One with a new key."""
    secret, key = await gateway.services.directory.admin_keys.create(
        "ops", scope=AdminScope.WRITE, now_s=time.time()
    )
    return Operator(gateway=gateway, key=secret, key_id=key.key_id)
