"""Which store the settings choose, and what they cannot choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Settings, StoreAddress
from gateway.stores.base import LimitStore, StoreError
from gateway.stores.memory import MemoryStore
from gateway.stores.opening import check_shared, open_store
from gateway.stores.redis import RedisStore
from gateway.stores.sqlite import SqliteStore
from tests.valkey import serving_valkey


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sqlite", SqliteStore),
        ("memory", MemoryStore),
        ("redis://127.0.0.1:1/0", RedisStore),
        ("rediss://127.0.0.1:1/0", RedisStore),
        ("unix:///no/such.sock", RedisStore),
    ],
)
async def test_each_address_opens_its_store(
    text: str, kind: type[LimitStore], tmp_path: Path
) -> None:
    """A server that is not there is no error yet."""
    store = await open_store(Settings(home=tmp_path, store=StoreAddress(text)))
    assert isinstance(store, kind)
    await store.aclose()


async def test_a_password_comes_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("pässwörd\n")
    with serving_valkey(tmp_path, "--requirepass", "pässwörd") as server:
        address = StoreAddress(server.url)
        store = await open_store(Settings(store=address, store_password_file=secret))
        await store.check()
        await store.aclose()


@pytest.mark.parametrize("text", ["sqlite", "memory"])
async def test_a_password_for_no_server_is_refused(text: str, tmp_path: Path) -> None:
    settings = Settings(store=StoreAddress(text), store_password_file=tmp_path / "password")
    with pytest.raises(StoreError, match="TURNOUT_STORE_PASSWORD_FILE"):
        await open_store(settings)


async def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = Settings(
        store=StoreAddress("redis://127.0.0.1:1/0"), store_password_file=tmp_path / "absent"
    )
    with pytest.raises(StoreError, match=r"TURNOUT_STORE_PASSWORD_FILE.*absent"):
        await open_store(settings)


@pytest.mark.parametrize(
    ("text", "num_gateways"), [("memory", 1), ("sqlite", 2), ("redis://127.0.0.1/0", 2)]
)
def test_what_all_gateway_processes_share_is_taken(text: str, num_gateways: int) -> None:
    check_shared(Settings(store=StoreAddress(text)), num_gateways=num_gateways)


def test_memory_is_refused_for_several_gateway_processes() -> None:
    """Each would grant every limit in full."""
    with pytest.raises(StoreError, match="memory is not shared by 2 gateway processes"):
        check_shared(Settings(store=StoreAddress("memory")), num_gateways=2)
