"""What the directory of tenants and keys must do, whatever database it is in."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from gateway.errors import Overloaded, Unauthenticated
from gateway.tenancy import key_check
from gateway.tenancy.database import Directory
from gateway.tenancy.key_rules import parse_rules
from gateway.tenancy.keys import ENTROPY_BYTES, mint
from gateway.tenancy.last_used import PRECISION_S
from gateway.tenancy.schema import DirectoryError, UnknownKey
from gateway.tenancy.verified import CACHE_TTL_S
from tests.contracts.directories import Place
from tests.contracts.postgres import PASSWORD

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0
STRANGER = mint(bytes(range(ENTROPY_BYTES)))
NARROW = parse_rules(
    scopes=["models"], models=["small", "team/*"], networks=["10.0.0.0/8", "2001:db8::/32"]
)


@pytest.fixture
async def secret(directory: Directory) -> str:
    """The secret of a key of tenant acme, created at `NOW_S`, good for an hour."""
    await directory.create_tenant("acme", plan="free")
    secret, _ = await directory.create_key("acme", name="ci", now_s=NOW_S, expires_s=NOW_S + HOUR_S)
    return secret


async def refuses(directory: Directory, secret: str, *, now_s: float, match: str) -> None:
    with pytest.raises(Unauthenticated, match=match) as caught:
        await directory.authenticate(secret, now_s=now_s)
    assert not caught.value.missing
    assert secret[-12:] not in caught.value.message


async def test_a_key_opens_the_door_for_its_tenant(directory: Directory, secret: str) -> None:
    principal = await directory.authenticate(secret, now_s=NOW_S)
    (record,) = await directory.keys("acme")
    assert principal.tenant == await directory.tenant("acme")
    assert principal.tenant.plan == "free"
    assert principal.key_id == record.key_id


async def test_unknown_and_malformed_keys_are_refused(directory: Directory, secret: str) -> None:
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect API key")
    await refuses(directory, secret[:-1] + "!", now_s=NOW_S, match="not a whole key")


async def test_an_expired_key_is_refused_even_while_it_is_cached(
    directory: Directory, secret: str
) -> None:
    await directory.authenticate(secret, now_s=NOW_S + HOUR_S - 0.1)
    await refuses(directory, secret, now_s=NOW_S + HOUR_S, match="expired")


async def test_a_revocation_is_seen_at_once_here_and_within_a_second_elsewhere(
    directory: Directory, secret: str, place: Place
) -> None:
    (record,) = await directory.keys()
    async with place.opened() as other:
        await other.authenticate(secret, now_s=NOW_S)
        await directory.authenticate(secret, now_s=NOW_S)
        await directory.revoke_key(record.key_id, now_s=NOW_S)
        await refuses(directory, secret, now_s=NOW_S, match="Incorrect API key")
        await other.authenticate(secret, now_s=NOW_S + CACHE_TTL_S / 2)
        await refuses(other, secret, now_s=NOW_S + CACHE_TTL_S, match="Incorrect API key")


async def test_a_clock_stepping_back_does_not_prolong_the_cache(
    directory: Directory, secret: str, place: Place
) -> None:
    """Case Q-CLOCK-STEP."""
    await directory.authenticate(secret, now_s=NOW_S)
    await place.sql("UPDATE keys SET revoked_s = 1.0")
    await refuses(directory, secret, now_s=NOW_S - HOUR_S, match="Incorrect API key")


async def test_a_key_in_use_is_looked_up_once_a_second_only(
    directory: Directory, secret: str, place: Place
) -> None:
    await directory.authenticate(secret, now_s=NOW_S)
    await place.sql("ALTER TABLE keys RENAME TO elsewhere")
    await directory.authenticate(secret, now_s=NOW_S + 0.9)
    with pytest.raises(Overloaded, match="Keys cannot be checked"):
        await directory.authenticate(secret, now_s=NOW_S + 1.0)


async def test_no_part_of_a_key_is_logged(
    directory: Directory, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case Q-KEY-IN-LOGS: unknown, expired and revoked are told apart by id or digest."""
    caplog.set_level(logging.DEBUG)
    (record,) = await directory.keys()
    await refuses(directory, STRANGER, now_s=NOW_S, match="Incorrect")
    await refuses(directory, secret, now_s=NOW_S + HOUR_S, match="expired")
    await directory.revoke_key(record.key_id, now_s=NOW_S)
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect")
    refusals = [one.getMessage() for one in caplog.records if one.name == key_check.__name__]
    assert "refused a key: unknown" in refusals[0]
    assert refusals[1] == f"refused key {record.key_id}: expired"
    assert f"refused key {record.key_id}: revoked" in refusals[2]
    for each in (STRANGER, secret):
        assert not any(each[i : i + 8] in caplog.text for i in range(8, len(each) - 7))


async def test_the_password_of_the_database_is_in_no_log_line(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Case Q-KEY-IN-LOGS."""
    caplog.set_level(logging.DEBUG)
    async with place.opened() as directory:
        await directory.create_tenant("acme", plan="free")
        await place.sql("ALTER TABLE tenants RENAME TO elsewhere")
        with pytest.raises(Overloaded):
            await directory.authenticate(STRANGER, now_s=NOW_S)
    assert "cannot look a key up" in caplog.text
    assert PASSWORD not in caplog.text


async def test_tenants_and_keys_are_listed_page_by_page(directory: Directory) -> None:
    for name in ("c", "a", "b"):
        await directory.create_tenant(name, plan="free")
    for i in range(3):  # two at the same moment
        await directory.create_key("a", name=f"{i}", now_s=NOW_S + i // 2)
    await directory.create_key("b", name="", now_s=NOW_S)
    names = [one.name for one in await directory.tenants(limit=2)]
    names += [one.name for one in await directory.tenants(after=names[-1], limit=2)]
    assert names == ["a", "b", "c"]
    first = await directory.keys("a", limit=2)
    assert first + await directory.keys("a", after=first[-1].key_id) == await directory.keys("a")
    assert len(await directory.keys()) == 4
    with pytest.raises(UnknownKey):
        await directory.keys("a", after="key_0")


async def test_everything_survives_a_restart(
    directory: Directory, secret: str, place: Place
) -> None:
    await directory.create_key(
        "acme", name="n", description="d", now_s=NOW_S + 1.0, rules=NARROW, expires_s=NOW_S + 9.5
    )
    async with place.opened() as again:
        assert await again.keys() == await directory.keys()
        assert await again.tenants() == await directory.tenants()
        assert (await again.authenticate(secret, now_s=NOW_S)).tenant.name == "acme"


async def test_a_principal_carries_the_rules_of_its_key(directory: Directory, secret: str) -> None:
    narrow, record = await directory.create_key("acme", name="", now_s=NOW_S, rules=NARROW)
    assert (await directory.authenticate(narrow, now_s=NOW_S)).rules == NARROW
    assert (await directory.key(record.key_id)).rules == NARROW
    assert (await directory.authenticate(secret, now_s=NOW_S)).rules == parse_rules()


async def test_a_second_tenant_of_the_same_name_is_refused(
    directory: Directory, secret: str
) -> None:
    with pytest.raises(DirectoryError, match="there is a tenant 'acme' already"):
        await directory.create_tenant("acme", plan="pro")


async def test_unknown_tenants_and_keys_are_named_with_a_remedy(directory: Directory) -> None:
    with pytest.raises(DirectoryError, match="turnout tenants create nobody"):
        await directory.create_key("nobody", name="", now_s=NOW_S)
    for work in (directory.keys, directory.delete_tenant, directory.enable_tenant):
        with pytest.raises(DirectoryError, match="there is no tenant 'nobody'"):
            await work("nobody")
    with pytest.raises(DirectoryError, match="turnout keys list"):
        await directory.revoke_key("key_0", now_s=NOW_S)
    with pytest.raises(DirectoryError, match="there is no key 'key_0'"):
        await directory.rotate_key("key_0", overlap_s=1.0, now_s=NOW_S)


async def test_revoking_again_keeps_the_first_time(directory: Directory, secret: str) -> None:
    (record,) = await directory.keys()
    await directory.revoke_key(record.key_id, now_s=NOW_S)
    assert (await directory.revoke_key(record.key_id, now_s=NOW_S + 9.0)).revoked_s == NOW_S


async def test_a_changed_plan_holds_for_the_next_request(directory: Directory, secret: str) -> None:
    await directory.authenticate(secret, now_s=NOW_S)
    assert (await directory.set_plan("acme", "pro")).plan == "pro"
    assert (await directory.authenticate(secret, now_s=NOW_S)).tenant.plan == "pro"


async def test_the_keys_of_a_disabled_tenant_open_nothing_until_it_is_enabled(
    directory: Directory, secret: str
) -> None:
    await directory.authenticate(secret, now_s=NOW_S)
    await directory.disable_tenant("acme", now_s=NOW_S)
    assert (await directory.disable_tenant("acme", now_s=NOW_S + 9.0)).disabled_s == NOW_S
    await refuses(directory, secret, now_s=NOW_S, match="disabled")
    await directory.enable_tenant("acme")
    assert (await directory.authenticate(secret, now_s=NOW_S)).tenant.disabled_s is None


async def test_only_a_disabled_tenant_is_deleted_and_its_keys_with_it(
    directory: Directory, secret: str
) -> None:
    await directory.create_tenant("globex", plan="free")
    kept, _ = await directory.create_key("globex", name="", now_s=NOW_S)
    with pytest.raises(DirectoryError, match="turnout tenants disable acme"):
        await directory.delete_tenant("acme")
    await directory.authenticate(secret, now_s=NOW_S)
    await directory.disable_tenant("acme", now_s=NOW_S)
    await directory.delete_tenant("acme")
    await refuses(directory, secret, now_s=NOW_S, match="Incorrect API key")
    assert [tenant.name for tenant in await directory.tenants()] == ["globex"]
    assert len(await directory.keys()) == 1
    await directory.authenticate(kept, now_s=NOW_S)


async def test_a_rotated_key_stays_good_until_the_overlap_is_over(
    directory: Directory, place: Place
) -> None:
    await directory.create_tenant("acme", plan="free")
    old, old_record = await directory.create_key(
        "acme", name="ci", description="d", now_s=NOW_S, rules=NARROW
    )
    async with place.opened() as other:
        new, successor = await other.rotate_key(
            old_record.key_id, overlap_s=HOUR_S, now_s=NOW_S + 1.0
        )
    end_s = NOW_S + 1.0 + HOUR_S
    for secret, key_id in ((old, old_record.key_id), (new, successor.key_id)):
        principal = await directory.authenticate(secret, now_s=end_s - 0.1)
        assert (principal.key_id, principal.rules) == (key_id, NARROW)
    await refuses(directory, old, now_s=end_s, match="expired")
    await directory.authenticate(new, now_s=end_s)
    assert (successor.name, successor.description, successor.expires_s) == ("ci", "d", None)
    assert (await directory.key(old_record.key_id)).successor_id == successor.key_id


async def test_a_rotation_never_prolongs_the_old_key(directory: Directory, secret: str) -> None:
    (old,) = await directory.keys()
    _, successor = await directory.rotate_key(old.key_id, overlap_s=48 * HOUR_S, now_s=NOW_S + 60.0)
    assert (await directory.key(old.key_id)).expires_s == NOW_S + HOUR_S
    assert successor.expires_s == NOW_S + 60.0 + HOUR_S  # as long as the old one was made for


async def test_only_a_good_key_is_rotated_and_only_once(directory: Directory, secret: str) -> None:
    (old,) = await directory.keys()
    with pytest.raises(DirectoryError, match="expired; issue one"):
        await directory.rotate_key(old.key_id, overlap_s=1.0, now_s=NOW_S + HOUR_S)
    outcomes = await asyncio.gather(
        *(directory.rotate_key(old.key_id, overlap_s=1.0, now_s=NOW_S) for _ in range(3)),
        return_exceptions=True,
    )
    errors = [str(one) for one in outcomes if isinstance(one, DirectoryError)]
    assert len(errors) == 2
    assert all("was replaced by" in error for error in errors)
    assert len(await directory.keys()) == 2
    await directory.revoke_key(old.key_id, now_s=NOW_S)
    with pytest.raises(DirectoryError, match="revoked; issue one"):
        await directory.rotate_key(old.key_id, overlap_s=1.0, now_s=NOW_S)


async def test_the_use_of_a_replaced_key_is_logged_once_a_minute(
    directory: Directory, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    (old,) = await directory.keys()
    _, successor = await directory.rotate_key(old.key_id, overlap_s=600.0, now_s=NOW_S)
    for second in range(0, 120, 5):
        await directory.authenticate(secret, now_s=NOW_S + second)
    lines = [one.getMessage() for one in caplog.records if "still uses" in one.getMessage()]
    assert len(lines) == 2
    assert f"tenant acme still uses key {old.key_id}, which {successor.key_id}" in lines[0]
    assert "it ends in 600 s" in lines[0]


async def test_last_use_is_stored_at_most_once_a_minute(place: Place) -> None:
    async def uses(*times_s: float) -> float | None:
        async with place.opened() as directory:
            for time_s in times_s:
                await directory.authenticate(secret, now_s=time_s)
        async with place.opened() as directory:
            return (await directory.key(record.key_id)).last_used_s

    async with place.opened() as directory:
        await directory.create_tenant("acme", plan="free")
        secret, record = await directory.create_key("acme", name="", now_s=NOW_S)
    assert await uses() is None
    assert await uses(NOW_S, NOW_S + PRECISION_S - 0.1) == NOW_S
    assert await uses(NOW_S + 1.0, NOW_S + 1.0 + PRECISION_S) == NOW_S + 1.0 + PRECISION_S
    assert await uses(NOW_S + 2.0) == NOW_S + 1.0 + PRECISION_S  # a slow clock takes nothing back


async def test_a_use_that_cannot_be_stored_refuses_nobody(
    directory: Directory, secret: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.sql("ALTER TABLE keys RENAME COLUMN last_used_s TO elsewhere")
    await directory.authenticate(secret, now_s=NOW_S)
    await directory.aclose()
    assert "cannot write when 1 keys were used" in caplog.text


async def test_connections_that_the_server_closed_cost_no_request(
    directory: Directory, secret: str, place: Place
) -> None:
    await directory.authenticate(secret, now_s=NOW_S)
    if place.password_file is not None:  # a file has nobody who closes
        await place.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await directory.authenticate(secret, now_s=NOW_S + CACHE_TTL_S)


async def test_several_may_open_a_new_directory_at_once(place: Place) -> None:
    async def work(name: str) -> str:
        async with place.opened() as directory:
            await directory.create_tenant(name, plan="free")
            return (await directory.create_key(name, name="", now_s=NOW_S))[0]

    names = [f"tenant-{i}" for i in range(4)]
    secrets = await asyncio.gather(*map(work, names))
    async with place.opened() as directory:
        found = [(await directory.authenticate(one, now_s=NOW_S)).tenant.name for one in secrets]
    assert found == names


async def test_a_newer_database_is_refused_with_a_remedy(place: Place) -> None:
    async with place.opened():
        pass
    await place.sql("UPDATE turnout_schema SET version_num = '9999'")
    with pytest.raises(DirectoryError, match=r"schema version 9999, this Turnout knows .*upgrade"):
        async with place.opened():
            pass


async def test_a_table_of_somebody_else_is_not_touched(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    await place.sql("CREATE TABLE keys (x INTEGER)")
    with pytest.raises(DirectoryError, match="a database of its own"):
        async with place.opened():
            pass
    await place.sql("SELECT x FROM keys")


async def test_a_pepper_of_another_directory_is_refused(
    directory: Directory, secret: str, place: Place
) -> None:
    """With it no key would open anything, and new ones would open nothing elsewhere."""
    (place.home / "pepper").write_bytes(b"another" * 9)
    with pytest.raises(DirectoryError, match="is not the one its keys were made with"):
        async with place.opened():
            pass


async def test_a_lost_pepper_is_not_replaced_by_one_that_opens_nothing(
    directory: Directory, secret: str, place: Place
) -> None:
    (place.home / "pepper").unlink()
    for _ in range(2):
        with pytest.raises(DirectoryError, match="pepper is gone"):
            async with place.opened():
                pass


async def test_a_tenant_is_known_by_its_name_while_it_is_active(directory: Directory) -> None:
    tenant = await directory.create_tenant("acme", plan="free")
    assert await directory.active_tenant("acme", now_s=NOW_S) == tenant
    for stranger in ("nobody", "ACME", "", "a" * 100, "\ud800"):
        with pytest.raises(Unauthenticated, match="is no tenant here"):
            await directory.active_tenant(stranger, now_s=NOW_S)


async def test_a_disabled_tenant_is_known_by_its_name_within_a_second(
    directory: Directory, place: Place
) -> None:
    """At once where it was disabled."""
    await directory.create_tenant("acme", plan="free")
    async with place.opened() as other:
        for each in (directory, other):
            await each.active_tenant("acme", now_s=NOW_S)
        await directory.disable_tenant("acme", now_s=NOW_S)
        with pytest.raises(Unauthenticated, match="Tenant 'acme' is disabled"):
            await directory.active_tenant("acme", now_s=NOW_S)
        await other.active_tenant("acme", now_s=NOW_S + CACHE_TTL_S / 2)
        with pytest.raises(Unauthenticated, match="Tenant 'acme' is disabled"):
            await other.active_tenant("acme", now_s=NOW_S + CACHE_TTL_S)
        await directory.enable_tenant("acme")
        await other.active_tenant("acme", now_s=NOW_S + CACHE_TTL_S)


async def test_a_tenant_that_cannot_be_looked_up_is_not_refused(
    directory: Directory, place: Place
) -> None:
    """What is believed goes on for its second."""
    await directory.create_tenant("acme", plan="free")
    await directory.active_tenant("acme", now_s=NOW_S)
    await place.sql("ALTER TABLE tenants RENAME TO elsewhere")
    await directory.active_tenant("acme", now_s=NOW_S + CACHE_TTL_S / 2)
    with pytest.raises(Overloaded):
        await directory.active_tenant("acme", now_s=NOW_S + CACHE_TTL_S)


async def test_a_pseudonym_is_the_same_wherever_the_pepper_is(
    directory: Directory, place: Place, tmp_path: Path
) -> None:
    async with place.opened() as again:
        assert again.pseudonym("jane") == directory.pseudonym("jane") != again.pseudonym("joe")
    elsewhere = await Directory.open(tmp_path / "elsewhere")
    assert elsewhere.pseudonym("jane") != directory.pseudonym("jane")
    await elsewhere.aclose()
