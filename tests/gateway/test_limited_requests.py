"""Limits as requests meet them: on plans, keys, routes and backends, of tokens and of money."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from backends.base import Backend
from gateway.stores.base import Claim, Granted, OnStoreError, Refused, StoreError
from gateway.stores.memory import MemoryStore
from tests.gateway.serving import CHAT, POLICY, Caller, Gateway, chat, echo, gateway_over

PRICED = POLICY.replace("{engine: echo}", "{engine: echo, price: {input: 1000, output: 1000}}")


def limited(limit: str, *, text: str = POLICY, **places: str) -> str:
    """The policy with another limit `free`, attached to the plan unless a place is given."""
    text = text.replace("{requests: 10/min, tokens: 1k/min, concurrent: 2}", limit)
    if places:
        text = text.replace("limits: [free], ", "")
    if backend := places.get("backend"):
        text = text.replace(
            f"{backend}: {{engine: echo", f"{backend}: {{engine: echo, limits: [free]"
        )
    if route := places.get("route"):
        text = text.replace(f"name: {route}, ", f"name: {route}, limits: [free], ")
    return "currency: EUR\n" + text if "price" in text else text


async def ask(gateway: Gateway, **fields: object) -> Caller:
    """Three tokens in, and as many out and an end, unless `max_tokens` says less."""
    return await gateway.call(CHAT, chat("one two three", **fields))


def code(caller: Caller) -> tuple[int, object]:
    return caller.status, caller.json()["error"]["code"]


async def test_input_and_output_tokens_are_counted_apart(tmp_path: Path) -> None:
    policy = limited("{input_tokens: 1k/min, output_tokens: 150/min}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        first = await ask(gateway)
        assert first.response_headers["x-ratelimit-remaining-tokens"] == "50"  # 100 reserved
        assert await gateway.used("input_tokens") == 3
        assert await gateway.used("output_tokens") == 4
        refused = await ask(gateway, max_tokens=147)
        assert code(refused) == (429, "rate_limit_exceeded")
        assert refused.json()["error"]["type"] == "tokens"


def backends() -> dict[str, Backend]:
    return {"first": echo("first"), "second": echo("second")}


async def test_a_day_that_is_used_up_is_a_quota_and_not_worth_a_retry(tmp_path: Path) -> None:
    """Q-RESET: the wait is the true one, to the end of the day."""
    policy = limited("{tokens: 107/day}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert (await ask(gateway)).status == 200
        refused = await ask(gateway, max_tokens=98)
        assert code(refused) == (429, "insufficient_quota")
        assert refused.json()["error"]["type"] == "insufficient_quota"
        assert refused.response_headers["x-should-retry"] == "false"
        left_s = 86_400 - time.time() % 86_400
        assert 0 <= int(refused.response_headers["retry-after"]) - left_s < 60
        assert (await ask(gateway, max_tokens=97)).status == 200


async def test_a_day_of_which_others_hold_the_rest_is_worth_a_retry(tmp_path: Path) -> None:
    """Q-RESERVE-STREAM: nobody is told that a quota is used up while it is not."""
    policy = limited("{tokens: 107/day}")
    slow = {"first": echo("first", first_token_delay_s=30.0), "second": echo("second")}
    async with gateway_over(tmp_path, slow, policy=policy) as gateway:
        running = gateway.caller(CHAT, chat())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.run())
            while not await gateway.reserved():
                await asyncio.sleep(0)
            refused = await ask(gateway)
            running.leave.set()
        assert code(refused) == (429, "rate_limit_exceeded")
        assert refused.response_headers["retry-after"] == "1"


async def test_money_is_reserved_at_the_price_and_settled_with_the_cost(tmp_path: Path) -> None:
    """7 tokens at 1,000 a million are 0.007; 97 more could cost 0.100."""
    policy = limited("{cost: 0.107/month, warn_at: [5%, 50%]}", text=PRICED)
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert (await ask(gateway)).status == 200
        (record,) = await gateway.records()
        assert await gateway.used("cost") == record.cost_micros == 7_000
        refused = await ask(gateway, max_tokens=98)
        assert code(refused) == (429, "insufficient_quota")
        assert "needs 0.101, 0.1 are left" in refused.json()["error"]["message"]


async def test_a_soft_limit_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = limited("{tokens: 1k/day, warn_at: 2%}")
    caplog.set_level(logging.WARNING, "turnout.limits")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        for _ in range(5):
            assert (await ask(gateway)).status == 200
    (told,) = caplog.records
    assert told.getMessage().startswith("limit free of tenant:")
    assert told.getMessage().endswith(": 21 of 1000 tokens used")


async def test_each_key_has_its_own_share_if_the_limit_says_so(tmp_path: Path) -> None:
    policy = limited("{requests: 1/min, per: key}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        directory = gateway.services.directory
        other, _ = await directory.create_key("acme", name="other", now_s=time.time())
        assert (await ask(gateway)).status == 200
        assert (await ask(gateway)).status == 429
        with_other = {"authorization": f"Bearer {other}"}
        assert (await gateway.call(CHAT, chat(), headers=with_other)).status == 200


async def test_a_route_has_limits_of_its_own(tmp_path: Path) -> None:
    policy = limited("{requests: 1/min}", route="all")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert (await ask(gateway)).status == 200
        assert code(await ask(gateway)) == (429, "rate_limit_exceeded")
        (usage,) = await gateway.store.usage()
        assert usage.counter.startswith("route:all/free/")


async def test_a_backend_whose_allowance_is_used_up_is_passed_over(tmp_path: Path) -> None:
    """The client's own limits are not those: it never sees a 429 for ours."""
    policy = limited("{requests: 2/min, output_tokens: 1k/day}", backend="first")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        answers = [await ask(gateway) for _ in range(3)]
        assert [one.response_headers["x-turnout-backend"] for one in answers] == [
            "first",
            "first",
            "second",
        ]
        assert answers[2].response_headers["x-turnout-attempts"] == "2"
        assert "x-ratelimit-limit-requests" not in answers[0].response_headers
        assert await gateway.used("output_tokens") == 8
        assert await gateway.reserved() == 0


async def test_without_another_backend_it_is_an_overload_with_a_wait(tmp_path: Path) -> None:
    policy = limited("{requests: 1/min}", backend="first").replace(", fallback: [second]", "")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert (await ask(gateway)).status == 200
        refused = await ask(gateway)
        assert code(refused) == (503, "server_is_overloaded")
        assert 1 <= int(refused.response_headers["retry-after"]) <= 120


TWO_ALLOWANCES = (
    POLICY.replace("limits: [free], ", "")
    .replace("first: {engine: echo}", "first: {engine: echo, limits: [soon]}")
    .replace("second: {engine: echo}", "second: {engine: echo, limits: [late]}")
)


def allowances(soon: str, late: str) -> str:
    return TWO_ALLOWANCES.replace("limits:\n", f"limits:\n  soon: {soon}\n  late: {late}\n", 1)


async def test_of_several_allowances_the_shortest_wait_is_told(tmp_path: Path) -> None:
    policy = allowances("{requests: 1/min}", "{requests: 1/h}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert [(await ask(gateway)).status for _ in range(2)] == [200, 200]
        refused = await ask(gateway)
    assert code(refused) == (503, "server_is_overloaded")
    assert 1 < int(refused.response_headers["retry-after"]) <= 60


async def test_a_request_larger_than_every_allowance_is_told_what_to_change(tmp_path: Path) -> None:
    policy = allowances("{tokens: 200/min}", "{tokens: 300/min}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        assert code(await ask(gateway, max_tokens=400)) == (400, "request_exceeds_limit")
        fits = await ask(gateway, max_tokens=250)
    assert fits.response_headers["x-turnout-backend"] == "second"


async def test_a_failure_is_told_rather_than_an_allowance_that_is_used_up(tmp_path: Path) -> None:
    failing = {"first": echo("first", fail_before=True), "second": echo("second")}
    policy = allowances("{requests: 9/min}", "{tokens: 100/min}")
    async with gateway_over(tmp_path, failing, policy=policy) as gateway:
        assert code(await ask(gateway)) == (502, "upstream_error")


async def test_an_allowance_is_reserved_at_the_backends_own_price(tmp_path: Path) -> None:
    """Q-FALLBACK-BUDGET: each target is checked at its price; the dear one is but a fallback."""
    policy = allowances("{cost: 0.001/day}", "{requests: 9/min}")
    policy = "currency: EUR\n" + policy.replace(
        "limits: [soon]}", "limits: [soon], price: {input: 1, output: 1}}"
    ).replace("limits: [late]}", "limits: [late], price: {input: 1000, output: 1000}}")
    async with gateway_over(tmp_path, backends(), policy=policy) as gateway:
        answer = await ask(gateway)
    assert answer.response_headers["x-turnout-backend"] == "first"


class FailsForBackends(MemoryStore):
    """It counts for clients, and for backends no more."""

    async def reserve(
        self, lease_id: str, claims: tuple[Claim, ...], ttl_s: float
    ) -> Granted | Refused:
        if any(claim.scope.startswith("backend:") for claim in claims):
            raise StoreError("connection lost")
        return await super().reserve(lease_id, claims, ttl_s)


async def test_a_backend_whose_allowance_nobody_knows_is_passed_over(tmp_path: Path) -> None:
    policy = limited("{requests: 9/min}", backend="first")
    store = FailsForBackends(clock=time.monotonic)
    async with gateway_over(tmp_path, backends(), policy=policy, store=store) as gateway:
        answer = await ask(gateway)
    assert answer.response_headers["x-turnout-backend"] == "second"


async def test_an_attempt_that_gave_nothing_costs_nothing_of_the_allowance(tmp_path: Path) -> None:
    """Q-FALLBACK-BUDGET: and the answer of the next one is not charged to the first."""
    policy = limited("{requests: 5/min, tokens: 10k/day}", backend="first")
    failing = {"first": echo("first", fail_before=True), "second": echo("second")}
    async with gateway_over(tmp_path, failing, policy=policy) as gateway:
        assert (await ask(gateway)).status == 200
        assert await gateway.store.usage() == ()


class Broken(MemoryStore):
    """A store that does not work while `is_broken`."""

    is_broken = False

    def _advance(self) -> int:
        if self.is_broken:
            raise StoreError("the disk is full")
        return super()._advance()


@pytest.mark.parametrize(
    ("mode", "statuses"),
    [
        (OnStoreError.DENY, [503, 503, 503]),
        (OnStoreError.LOCAL_SHARE, [200, 200, 429]),
        (OnStoreError.ALLOW, [200, 200, 200]),
    ],
)
async def test_each_limit_says_what_becomes_of_it_while_the_store_fails(
    tmp_path: Path, mode: OnStoreError, statuses: list[int]
) -> None:
    policy = limited(f"{{requests: 2/min, on_store_error: {mode.value}}}")
    store = Broken(clock=time.monotonic)
    async with gateway_over(tmp_path, backends(), policy=policy, store=store) as gateway:
        store.is_broken = True
        assert [(await ask(gateway)).status for _ in range(3)] == statuses
        store.is_broken = False
        assert (await ask(gateway)).status == 200
        records = await gateway.records()
        assert sorted(record.status for record in records) == sorted([*statuses, 200])
        assert await gateway.used("requests") == 1  # what came meanwhile is not counted later
