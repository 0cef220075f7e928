"""For whom a token speaks: from the request's header to a principal like that of a key.

A token is never stored and nothing of it is shown: who it was made for is known by a keyed hash of
its issuer and subject. Its signature is checked on every request, which takes 0.1 ms; its tenant is
believed for a second, as a key is.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from gateway.config import OidcSettings
from gateway.errors import ClientError, Forbidden, Unauthenticated
from gateway.tenancy.database import Directory
from gateway.tenancy.key_rules import KeyRules, KeyScope
from gateway.tenancy.oidc.claims import kid_of, read_claims
from gateway.tenancy.oidc.key_ring import KeyRing
from gateway.tenancy.oidc.provider import Provider
from gateway.tenancy.tenants import Principal

logger = logging.getLogger(__name__)

MAX_TOKEN_BYTES = 16_384
"""With some hundred groups in it a token has 12,000."""

_TOKEN = re.compile(rb"(?i:bearer) (eyJ[!-~]*)")  # eyJ is base64 for `{"`

_RULES = KeyRules(scopes=frozenset({KeyScope.INFERENCE}))


def token_of(authorization: Sequence[bytes], x_api_key: Sequence[bytes]) -> str | None:
    """The token that a request presents, given all values of the two headers; None if it presents
    anything else, or more.
    """
    if len(authorization) != 1 or x_api_key:
        return None
    match = _TOKEN.fullmatch(authorization[0])
    return match[1].decode("ascii") if match else None


class TokenCheck:
    """Tells for whom a token speaks. Used concurrently."""

    def __init__(
        self, settings: OidcSettings, keys: KeyRing, directory: Directory, plans: Collection[str]
    ) -> None:
        """plans: the names of all that there are."""
        self._settings = settings
        self._keys = keys
        self._directory = directory
        self._plans = plans

    async def authenticate(self, token: str, *, now_s: float) -> Principal:
        """For whom it speaks. Neither a message nor a log line holds any of the token.

        Raises:
            Unauthenticated: it opens nothing here and now; the message says why.
            Forbidden: it names no plan that there is.
            Overloaded: the provider's keys, or the tenant, cannot be looked up.
        """
        try:
            return await self._principal(token, now_s)
        except ClientError as refusal:
            logger.info("refused a token: %s", refusal.message)
            raise

    async def _principal(self, token: str, now_s: float) -> Principal:
        if len(token) > MAX_TOKEN_BYTES:
            raise Unauthenticated(
                f"The token is {len(token)} bytes long, {MAX_TOKEN_BYTES} is the most; have the "
                "identity provider put less into it."
            )
        key = await self._keys.key(kid_of(token))
        claims = read_claims(token, key, self._settings, now_s=now_s)
        tenant = await self._directory.active_tenant(claims.tenant, now_s=now_s)
        if claims.plan is not None:
            if claims.plan not in self._plans:
                raise Forbidden(
                    f"The token's plan {claims.plan!r:.60} does not exist; ask your operator."
                )
            tenant = replace(tenant, plan=claims.plan)
        who = self._directory.pseudonym(f"{self._settings.issuer}\n{claims.subject}")
        return Principal(tenant=tenant, key_id=f"oidc:{who}", rules=_RULES)


@asynccontextmanager
async def open_token_check(
    settings: OidcSettings | None, directory: Directory, plans: Collection[str]
) -> AsyncGenerator[TokenCheck | None]:
    """What checks tokens, its keys kept fresh until the block ends; None if none are taken."""
    if settings is None:
        yield None
        return
    keys = KeyRing(Provider(settings).fetch, clock=time.monotonic)
    refreshing = asyncio.create_task(keys.keep_fresh(), name="refresh-keys")
    try:
        yield TokenCheck(settings, keys, directory, plans)
    finally:
        refreshing.cancel()
        await asyncio.wait([refreshing])
        await keys.aclose()
