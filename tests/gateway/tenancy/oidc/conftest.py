"""A provider, and what is taken from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.config import OidcSettings
from tests.identity_provider import AUDIENCE, IdentityProvider, identity_provider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as running:
        yield running


@pytest.fixture
def settings(provider: IdentityProvider) -> OidcSettings:
    return OidcSettings(issuer=provider.issuer, audience=AUDIENCE)
