"""`policies/limits.yaml`: it loads, and shows every kind of limit there is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from gateway.policy.load import load
from gateway.policy.model import Limit

POLICY = load(Path(__file__).parents[3] / "policies/limits.yaml")


def test_every_kind_of_limit_is_shown_at_every_place() -> None:
    limits = [
        *POLICY.plans["free"].limits,
        *POLICY.routes[0].limits,
        *POLICY.backends["metered"].limits,
    ]
    plain = Limit(name="plain")
    for field in fields(Limit):
        values = {getattr(limit, field.name) for limit in limits}
        assert values - {getattr(plain, field.name)}, field.name
    assert {limit.per for limit in limits} == {"", "key", "plan"}
    assert {limit.on_store_error for limit in limits} == {"local_share", "allow"}
