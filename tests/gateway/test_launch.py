"""What `turnout serve` starts, and what it refuses before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.catalog import CatalogError
from gateway.config import Settings, StoreAddress
from gateway.launch import LaunchError, bind, check_store, children
from gateway.policy.load import load

ROOT = Path(__file__).resolve().parents[2]


def test_binds_any_free_port_when_asked_for_none() -> None:
    with bind("127.0.0.1", 0) as listening:
        assert listening.getsockname()[1] > 0


def test_binds_ipv6() -> None:
    with bind("::1", 0) as listening:
        assert listening.family is socket.AF_INET6


def test_a_taken_port_names_itself_and_the_remedy() -> None:
    """P-PORT."""
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"{port}.*TURNOUT_PORT"):
            bind("127.0.0.1", port)


def test_the_gateway_alone_has_the_socket_and_the_passwords(tmp_path: Path) -> None:
    """P-PORT and Q-KEY-IN-LOGS: an engine must not keep the port, and needs no store."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    policy_path = tmp_path / "policy.yaml"
    policy_path.write_text(
        ROOT.joinpath("policies/default.yaml")
        .read_text()
        .replace("model: smollm2-135m-instruct", f"model: {model}")
    )
    store = StoreAddress("redis://:CANARY@host:6379/0")
    settings = Settings(home=tmp_path, policy=policy_path, store=store)
    with bind("127.0.0.1", 0) as listening:
        engines, gateways = children(settings, load(policy_path), tmp_path, listening)
        assert [child.pass_fds for child in engines] == [()]
        assert [child.pass_fds for child in gateways] == [(listening.fileno(),)]
        assert all(child.environment["TURNOUT_RUN_DIR"] == str(tmp_path) for child in engines)
        assert [child.environment["TURNOUT_STORE"] for child in engines] == [""]
        assert [child.environment["TURNOUT_STORE"] for child in gateways] == [store.text]


def test_a_model_that_was_not_pulled_is_refused(tmp_path: Path) -> None:
    policy_path = ROOT / "policies/default.yaml"
    settings = Settings(home=tmp_path, policy=policy_path)
    with bind("127.0.0.1", 0) as listening, pytest.raises(CatalogError, match="models pull"):
        children(settings, load(policy_path), tmp_path, listening)


async def test_a_store_that_will_not_do_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="memory is not shared by 2 gateway processes"):
        await check_store(Settings(store=StoreAddress("memory")), num_gateways=2)
    tmp_path.joinpath("limits.db").write_text("no database" * 100)
    with pytest.raises(LaunchError, match=r"limits\.db: file is not a database"):
        await check_store(Settings(home=tmp_path), num_gateways=1)


async def test_a_server_that_is_not_there_yet_does_not_keep_the_gateway_from_starting() -> None:
    await check_store(Settings(store=StoreAddress("redis://127.0.0.1:1/0")), num_gateways=2)
