"""Keys come and go with the provider, who is asked once, and not for every stranger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.config import OidcSettings
from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy.oidc.key_ring import MIN_INTERVAL_S, KeyRing
from gateway.tenancy.oidc.provider import Provider
from tests.clock import FakeClock
from tests.identity_provider import KEYS, IdentityProvider, key_of


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def ring(settings: OidcSettings, clock: FakeClock) -> AsyncIterator[KeyRing]:
    ring = KeyRing(Provider(settings, timeout_s=30.0).fetch, clock=clock)
    yield ring
    await ring.aclose()


async def is_unknown(ring: KeyRing, kid: str) -> None:
    with pytest.raises(Unauthenticated, match="does not publish") as caught:
        await ring.key(kid)
    assert not caught.value.missing
    assert kid not in caught.value.message


async def test_the_first_token_fetches_and_others_do_not(
    provider: IdentityProvider, ring: KeyRing, clock: FakeClock
) -> None:
    for _ in range(3):
        assert (await ring.key("first")).kid == "first"
        clock.advance(MIN_INTERVAL_S)
    assert provider.asked.count(KEYS) == 1


async def test_a_new_key_is_fetched_when_a_token_names_it(
    provider: IdentityProvider, ring: KeyRing, clock: FakeClock
) -> None:
    await ring.key("first")
    clock.advance(MIN_INTERVAL_S)
    provider.rotate(key_of("EdDSA", "second"))
    assert (await ring.key("second")).algorithms == ("EdDSA",)
    await is_unknown(ring, "first")  # the provider withdrew it


async def test_strangers_cause_one_fetch_in_an_interval(
    provider: IdentityProvider, ring: KeyRing, clock: FakeClock
) -> None:
    """A flood of names that nobody knows."""
    for round_number in range(3):
        for i in range(100):
            await is_unknown(ring, f"CANARY-{round_number}-{i}")
        assert provider.asked.count(KEYS) == round_number + 1
        clock.advance(MIN_INTERVAL_S)
    clock.advance(-0.1)
    await is_unknown(ring, "CANARY")
    assert provider.asked.count(KEYS) == 3
    await ring.key("first")


async def test_who_comes_while_keys_are_fetched_waits_for_them(
    provider: IdentityProvider, ring: KeyRing
) -> None:
    """One that leaves takes nothing from the others."""
    provider.answers.clear()
    waiting = [asyncio.create_task(ring.key("first")) for _ in range(20)]
    while not provider.asked:
        await asyncio.sleep(0.001)
    waiting[0].cancel()
    await asyncio.wait([waiting[0]])
    provider.answers.set()
    found = await asyncio.gather(*waiting[1:])
    assert {key.kid for key in found} == {"first"}
    assert provider.asked.count(KEYS) == 1


async def test_known_keys_go_on_while_the_provider_is_down(
    provider: IdentityProvider,
    ring: KeyRing,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of others nobody can say whether they are published."""
    await ring.key("first")
    provider.fail_with = 500
    clock.advance(MIN_INTERVAL_S)
    await ring.refresh()
    assert (await ring.key("first")).kid == "first"
    with pytest.raises(Overloaded):
        await ring.key("second")
    assert "HTTP status 500" in caplog.text
    provider.fail_with = 0
    clock.advance(MIN_INTERVAL_S)
    await is_unknown(ring, "second")


async def test_without_any_key_the_wait_is_told(
    provider: IdentityProvider, ring: KeyRing, clock: FakeClock
) -> None:
    provider.fail_with = 503
    with pytest.raises(Overloaded, match="try again") as caught:
        await ring.key("first")
    assert caught.value.retry_after_s == MIN_INTERVAL_S
    clock.advance(4.0)
    with pytest.raises(Overloaded) as caught:
        await ring.key("first")
    assert caught.value.retry_after_s == MIN_INTERVAL_S - 4.0
    assert len(provider.asked) == 1
    provider.fail_with = 0
    clock.advance(MIN_INTERVAL_S - 4.0)
    assert (await ring.key("first")).kid == "first"


async def test_a_refresh_forgets_what_was_withdrawn(
    provider: IdentityProvider, ring: KeyRing, clock: FakeClock
) -> None:
    await ring.key("first")
    provider.rotate(key_of("ES384", "second"))
    clock.advance(MIN_INTERVAL_S)
    await ring.refresh()
    await is_unknown(ring, "first")


async def test_keys_are_fetched_before_a_token_comes(
    provider: IdentityProvider, ring: KeyRing
) -> None:
    refreshing = asyncio.create_task(ring.keep_fresh())
    while KEYS not in provider.asked:
        await asyncio.sleep(0.001)
    refreshing.cancel()
    await asyncio.wait([refreshing])
    await ring.key("first")
    assert provider.asked.count(KEYS) == 1


async def test_what_is_published_is_logged_when_it_changes(
    provider: IdentityProvider,
    ring: KeyRing,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="gateway.tenancy.oidc.key_ring")
    provider.rotate(key_of("ES256"), key_of("RS256", "short", size_bits=1024))
    for _ in range(2):
        await ring.refresh()
        clock.advance(MIN_INTERVAL_S)
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "keys of the identity provider: first"
    assert second.startswith("ignored a key of the identity provider: 'short': The RSA key is 1024")
