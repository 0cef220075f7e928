"""What `turnout serve` starts, and what it refuses before anything is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gateway.catalog import CatalogError
from gateway.config import Settings, StoreAddress
from gateway.launch import LaunchError, bind, check_shareable, check_store, children
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
    tmp_path.joinpath("limits.db").write_text("no database" * 100)
    with pytest.raises(LaunchError, match=r"limits\.db: file is not a database"):
        await check_store(Settings(home=tmp_path))


async def test_a_server_that_is_not_there_yet_does_not_keep_the_gateway_from_starting() -> None:
    await check_store(Settings(store=StoreAddress("redis://127.0.0.1:1/0")))


def test_several_gateways_share_the_socket_and_one_engine(tmp_path: Path) -> None:
    """Each has a name and a socket of its own, and all count in the same files."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    policy_path = tmp_path / "policy.yaml"
    text = ROOT.joinpath("policies/default.yaml").read_text()
    policy_path.write_text(text.replace("model: smollm2-135m-instruct", f"model: {model}"))
    settings = Settings(home=tmp_path, policy=policy_path, workers=3)
    with bind("127.0.0.1", 0) as listening:
        engines, gateways = children(settings, load(policy_path), tmp_path, listening)
        assert len(engines) == 1
        assert [child.name for child in gateways] == ["gateway 1", "gateway 2", "gateway 3"]
        assert {child.pass_fds for child in gateways} == {(listening.fileno(),)}
        assert len({child.command for child in gateways}) == 3
        files = {child.environment["PROMETHEUS_MULTIPROC_DIR"] for child in gateways}
        assert files == {str(tmp_path / "metrics")}
        assert list(tmp_path.joinpath("metrics").iterdir()) == []


def test_one_gateway_writes_no_metrics_to_files(tmp_path: Path) -> None:
    policy_path = ROOT / "policies/echo.yaml"
    with bind("127.0.0.1", 0) as listening:
        settings = Settings(home=tmp_path, policy=policy_path)
        _, (gateway,) = children(settings, load(policy_path), tmp_path, listening)
        assert gateway.name == "gateway"
        assert "PROMETHEUS_MULTIPROC_DIR" not in gateway.environment
        assert list(tmp_path.iterdir()) == []


def test_a_store_that_each_gateway_would_have_of_its_own_is_refused() -> None:
    policy = load(ROOT / "policies/echo.yaml")
    settings = Settings(store=StoreAddress("memory"), workers=2)
    with pytest.raises(LaunchError, match="memory is not shared by 2 gateway processes"):
        check_shareable(settings, policy)
    check_shareable(Settings(store=StoreAddress("memory")), policy)
    check_shareable(Settings(workers=2), policy)


def test_an_engine_inside_one_gateway_is_refused_for_several(tmp_path: Path) -> None:
    """The second gateway could not listen on the controller's port, and would never start."""
    policy_path = tmp_path / "policy.yaml"
    echo, workers = "{engine: echo}", "{engine: fastchat, model: vicuna-7b-v1.5}"
    policy_path.write_text(ROOT.joinpath("policies/echo.yaml").read_text().replace(echo, workers))
    with pytest.raises(LaunchError, match=r"'fastchat'.*cannot be shared by 2.*TURNOUT_WORKERS=1"):
        check_shareable(Settings(workers=2), load(policy_path))
    check_shareable(Settings(), load(policy_path))
