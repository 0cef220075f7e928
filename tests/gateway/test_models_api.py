"""`/v1/models`, `/info` and `/tokenize`, over real echo backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.echo import EchoBackend
from tests.gateway.serving import Gateway, gateway_over


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    backends = {name: EchoBackend(name) for name in ("first", "second")}
    async with gateway_over(tmp_path, backends) as running:
        yield running


async def test_lists_what_the_plan_allows_and_nothing_else(gateway: Gateway) -> None:
    """Q-MODEL-BYPASS: the listing shows only allowed models."""
    listed = (await gateway.call("/v1/models", b"", method="GET")).json()
    assert [card["id"] for card in listed["data"]] == ["echo"]
    assert listed["data"][0]["max_model_len"] == 32_768


async def test_shows_one_model_and_hides_the_others(gateway: Gateway) -> None:
    assert (await gateway.call("/v1/models/echo", b"", method="GET")).json()["id"] == "echo"
    for name in ("hidden", "nonsense", "a/b"):
        hidden = await gateway.call(f"/v1/models/{name}", b"", method="GET")
        assert hidden.status == 404
        assert hidden.json()["error"]["code"] == "model_not_found"


async def test_tells_clients_of_tgi_what_it_can_hold(gateway: Gateway) -> None:
    info = (await gateway.call("/info", b"", method="GET")).json()
    assert info["model_id"] == "echo"
    assert info["max_total_tokens"] == 32_768
    assert info["deterministic"] is True


async def test_cuts_a_text_into_tokens_in_both_forms(gateway: Gateway) -> None:
    tgi = (await gateway.call("/tokenize", {"inputs": "ä b"})).json()
    assert [(token["text"], token["start"], token["stop"]) for token in tgi] == [
        ("ä", 0, 2),
        (" b", 2, 4),
    ]
    vllm = (await gateway.call("/tokenize", {"model": "echo", "prompt": "a b c"})).json()
    assert vllm["count"] == 3
    assert vllm["max_model_len"] == 32_768


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({"model": "hidden", "prompt": "x"}, 404),
        ({"model": "nonsense", "prompt": "x"}, 404),
        ({"prompt": 5}, 400),
        ({}, 400),
        ({"prompt": "x" * 200_000}, 413),
    ],
)
async def test_refuses_what_it_cannot_cut(gateway: Gateway, body: object, status: int) -> None:
    answer = await gateway.call("/tokenize", body)
    assert answer.status == status
    assert answer.json()["error"]
