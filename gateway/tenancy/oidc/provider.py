"""The identity provider over HTTP: where its keys are, and the keys.

What comes back is bounded in time and size, and redirects are errors: the keys come from where the
operator said, or from nowhere. No proxy of the environment is used; certificates are checked with
the system's, or with SSL_CERT_FILE. Source: OpenID Connect Discovery 1.0, section 4.
"""

from __future__ import annotations

import asyncio
import ssl

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.config import OidcSettings, provider_url
from gateway.tenancy.oidc.jwks import KeySet, first_problem, parse_key_set

FETCH_TIMEOUT_S = 5.0
"""For the metadata and the keys together: requests may be waiting."""

MAX_BYTES = 1 << 19
"""Of one document; those of large providers have 20,000."""

_HEADERS = {"accept": "application/json", "accept-encoding": "identity"}


class ProviderError(Exception):
    """The keys could not be fetched; the message says from where, and why."""


class _Metadata(BaseModel):
    model_config = ConfigDict(strict=True)

    issuer: str
    jwks_uri: str


class Provider:
    """Asks for keys. Nothing is kept open between two calls."""

    def __init__(self, settings: OidcSettings, *, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context()

    async def fetch(self) -> KeySet:
        """The keys that it publishes now.

        Raises:
            ProviderError: it could not be asked, or its answer is of no use.
        """
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx.AsyncClient(
                    verify=self._tls, trust_env=False, timeout=self._timeout_s, headers=_HEADERS
                ) as http,
            ):
                url = self._settings.jwks_url or await self._discover(http)
                document = await _get(http, url)
        except TimeoutError:
            raise ProviderError(
                f"{self._settings.issuer} did not answer within {self._timeout_s:g} s"
            ) from None
        try:
            return parse_key_set(document)
        except ValueError as error:
            raise ProviderError(f"{url} holds no key set that can be used: {error}") from None

    async def _discover(self, http: httpx.AsyncClient) -> str:
        """Where the keys are, by the metadata, which must be the issuer's own (section 4.3)."""
        issuer = self._settings.issuer
        url = f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
        try:
            metadata = _Metadata.model_validate_json(await _get(http, url))
        except ValidationError as error:
            raise ProviderError(
                f"{url} holds no metadata of a provider ({first_problem(error)}); set "
                "TURNOUT_OIDC_JWKS_URL to where the keys are"
            ) from None
        if metadata.issuer != issuer:
            raise ProviderError(
                f"{url} is of the issuer {metadata.issuer!r}, not {issuer!r}; set "
                "TURNOUT_OIDC_ISSUER to the one that tokens have, to the letter"
            )
        try:
            return provider_url(metadata.jwks_uri)
        except ValueError as error:
            raise ProviderError(f"{url} has a 'jwks_uri' that is not used: it {error}") from None


async def _get(http: httpx.AsyncClient, url: str) -> bytes:
    """Raises: ProviderError."""
    document = bytearray()
    try:
        async with http.stream("GET", url) as answer:
            if answer.status_code != 200:
                raise ProviderError(
                    f"{url} answered with HTTP status {answer.status_code}, where the document "
                    "itself is needed"
                )
            async for chunk in answer.aiter_raw():
                document += chunk
                if len(document) > MAX_BYTES:
                    raise ProviderError(f"{url} holds more than {MAX_BYTES} bytes")
    except httpx.TimeoutException:
        raise TimeoutError from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderError(f"{url} cannot be read: {error!r}") from None
    return bytes(document)
