"""What the admin keys of a directory must do, whatever database they are in."""

from __future__ import annotations

import logging

import pytest

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import admin_keys as module
from gateway.tenancy.database import Directory
from gateway.tenancy.keys import ADMIN_PREFIX, ENTROPY_BYTES, mint
from gateway.tenancy.last_used import PRECISION_S
from gateway.tenancy.schema import DirectoryError, UnknownKey
from gateway.tenancy.tenants import AdminScope
from gateway.tenancy.verified import CACHE_TTL_S
from tests.contracts.directories import Place

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0
STRANGER = mint(bytes(range(ENTROPY_BYTES)), ADMIN_PREFIX)


async def refuses(directory: Directory, secret: str, *, now_s: float, match: str) -> None:
    with pytest.raises(Unauthenticated, match=match) as caught:
        await directory.admin_keys.authenticate(secret, now_s=now_s)
    assert secret[-12:] not in caught.value.message


async def test_an_admin_key_is_known_by_its_secret(directory: Directory, place: Place) -> None:
    secret, key = await directory.admin_keys.create("ops", scope=AdminScope.WRITE, now_s=NOW_S)
    assert secret.startswith(ADMIN_PREFIX)
    assert await directory.admin_keys.authenticate(secret, now_s=NOW_S) == key
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect admin key")
    await refuses(directory, secret[:-1] + "!", now_s=NOW_S, match="not a whole key")
    async with place.opened() as again:
        assert (await again.admin_keys.authenticate(secret, now_s=NOW_S)).key_id == key.key_id


async def test_neither_kind_of_key_opens_what_the_other_does(directory: Directory) -> None:
    await directory.create_tenant("acme", plan="free")
    tenants, _ = await directory.create_key("acme", name="", now_s=NOW_S)
    admins, _ = await directory.admin_keys.create("ops", scope=AdminScope.WRITE, now_s=NOW_S)
    await refuses(directory, tenants, now_s=NOW_S, match="tenant's key does not open /admin")
    with pytest.raises(Unauthenticated, match="admin key opens only /admin") as caught:
        await directory.authenticate(admins, now_s=NOW_S)
    assert admins[-12:] not in caught.value.message


async def test_a_write_key_may_read_and_a_read_key_may_not_write(directory: Directory) -> None:
    _, reader = await directory.admin_keys.create("r", scope=AdminScope.READ, now_s=NOW_S)
    _, writer = await directory.admin_keys.create("w", scope=AdminScope.WRITE, now_s=NOW_S)
    assert [key.allows(scope) for key in (reader, writer) for scope in AdminScope] == [
        *(True, False),
        *(True, True),
    ]


async def test_an_expired_admin_key_is_refused_even_while_it_is_cached(
    directory: Directory,
) -> None:
    secret, _ = await directory.admin_keys.create(
        "ops", scope=AdminScope.READ, now_s=NOW_S, expires_s=NOW_S + HOUR_S
    )
    await directory.admin_keys.authenticate(secret, now_s=NOW_S + HOUR_S - 0.1)
    await refuses(directory, secret, now_s=NOW_S + HOUR_S, match="expired")


async def test_a_revocation_is_seen_at_once_here_and_within_a_second_elsewhere(
    directory: Directory, place: Place
) -> None:
    secret, key = await directory.admin_keys.create("ops", scope=AdminScope.READ, now_s=NOW_S)
    async with place.opened() as other:
        await other.admin_keys.authenticate(secret, now_s=NOW_S)
        await directory.admin_keys.authenticate(secret, now_s=NOW_S)
        assert (await directory.admin_keys.revoke(key.key_id, now_s=NOW_S)).revoked_s == NOW_S
        await refuses(directory, secret, now_s=NOW_S, match="Incorrect admin key")
        await other.admin_keys.authenticate(secret, now_s=NOW_S + CACHE_TTL_S / 2)
        await refuses(other, secret, now_s=NOW_S + CACHE_TTL_S, match="Incorrect admin key")


async def test_a_clock_stepping_back_does_not_prolong_the_cache(
    directory: Directory, place: Place
) -> None:
    """Case Q-CLOCK-STEP."""
    secret, _ = await directory.admin_keys.create("ops", scope=AdminScope.READ, now_s=NOW_S)
    await directory.admin_keys.authenticate(secret, now_s=NOW_S)
    await place.sql("UPDATE admin_keys SET revoked_s = 1.0")
    await refuses(directory, secret, now_s=NOW_S - HOUR_S, match="Incorrect admin key")


async def test_revoking_again_keeps_the_first_time(directory: Directory) -> None:
    _, key = await directory.admin_keys.create("ops", scope=AdminScope.READ, now_s=NOW_S)
    await directory.admin_keys.revoke(key.key_id, now_s=NOW_S)
    again = await directory.admin_keys.revoke(key.key_id, now_s=NOW_S + 9.0)
    assert again.revoked_s == NOW_S
    with pytest.raises(UnknownKey, match="no admin key 'admin_0'; 'turnout admin-keys list'"):
        await directory.admin_keys.revoke("admin_0", now_s=NOW_S)


async def test_last_use_is_stored_at_most_once_a_minute(place: Place) -> None:
    async with place.opened() as directory:
        secret, key = await directory.admin_keys.create("ops", scope=AdminScope.READ, now_s=NOW_S)
    assert key.last_used_s is None
    for time_s, stored_s in (
        (NOW_S + 1.0, NOW_S + 1.0),
        (NOW_S + 1.0 + PRECISION_S, NOW_S + 1.0 + PRECISION_S),
    ):
        async with place.opened() as directory:
            for offset_s in (0.0, PRECISION_S - 0.1):
                await directory.admin_keys.authenticate(secret, now_s=time_s + offset_s)
        async with place.opened() as directory:
            (found,) = await directory.admin_keys.all()
            assert found.last_used_s == stored_s


async def test_no_part_of_an_admin_key_is_logged(
    directory: Directory, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Case Q-KEY-IN-LOGS."""
    caplog.set_level(logging.DEBUG, logger=module.__name__)
    secret, key = await directory.admin_keys.create("ops", scope=AdminScope.READ, now_s=NOW_S)
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect")
    await directory.admin_keys.revoke(key.key_id, now_s=NOW_S)
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect")
    await place.sql("ALTER TABLE admin_keys RENAME TO elsewhere")
    with pytest.raises(Overloaded, match="Keys cannot be checked"):
        await directory.admin_keys.authenticate(STRANGER, now_s=NOW_S)
    assert "refused an admin key: unknown" in caplog.text
    assert f"refused admin key {key.key_id}: revoked" in caplog.text
    for each in (STRANGER, secret):
        assert not any(each[i : i + 8] in caplog.text for i in range(9, len(each) - 7))


@pytest.mark.parametrize(
    "name", ["", "a b", "a\nb", "-x", "x" * 64, "\N{GREEK SMALL LETTER ALPHA}"]
)
async def test_a_name_that_cannot_stand_in_an_audit_line_is_refused(
    directory: Directory, name: str
) -> None:
    with pytest.raises(DirectoryError, match="cannot be an admin key's name"):
        await directory.admin_keys.create(name, scope=AdminScope.READ, now_s=NOW_S)
    assert await directory.admin_keys.all() == ()
