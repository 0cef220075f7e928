"""Whether the books are right after everything has gone wrong at once.

Three gateway processes share one store. Clients send requests, streamed and not, and many leave at
some point: before the answer, in the middle of it, at its end. Meanwhile the engine is killed, to
be started again, and one gateway is killed with `kill -9`. When all is over, and the leases of what
was killed have expired, the store holds nothing reserved, every counter is the sum of the usage
records, in each dimension, and no tenant got more than its limit.

    make chaos
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.stores.base import Dimension, LimitStore, Usage
from gateway.stores.redis import RedisStore
from gateway.stores.sqlite import SqliteStore
from gateway.tenancy.leases import LEASE_TTL_S
from gateway.usage.record import UsageRecord
from gateway.usage.store import Selection, UsageStore
from tests.e2e.running import MODEL_FILE, Server, serving
from tests.valkey import serving_valkey

POLICY = Path(__file__).with_name("chaos.yaml")
NUM_GATEWAYS = 3
NUM_AT_ONCE = 40
TIGHT_TOKENS = 4_000  # of the policy's limit `tight`
CHECK_TIMEOUT_S = LEASE_TTL_S + 30.0
MODELS = ("steady", "steady", "steady", "shaky", "broken", "model")


@dataclass(slots=True)
class Seen:
    """What the clients saw."""

    ends: Counter[str] = field(default_factory=Counter)
    answers: dict[str, int] = field(default_factory=dict)  # whole ones: id -> tokens
    tight_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """What store and database hold afterwards."""

    usage: tuple[Usage, ...]
    records: tuple[UsageRecord, ...]

    def used(self, limit: str, dimension: Dimension) -> int:
        name = f"/{limit}/{dimension.value}/"
        return sum(one.used for one in self.usage if name in one.counter)

    @property
    def reserved(self) -> int:
        return sum(one.reserved for one in self.usage)

    def recorded(self, plan: str, dimension: Dimension) -> int:
        charged = [one for one in self.records if one.plan == plan and _tokens(one)]
        match dimension:
            case Dimension.REQUESTS:
                return len(charged)
            case Dimension.INPUT_TOKENS:
                return sum(one.prompt_tokens for one in charged)
            case Dimension.OUTPUT_TOKENS:
                return sum(one.completion_tokens for one in charged)
            case Dimension.TOKENS:
                return sum(map(_tokens, charged))
            case Dimension.COST:
                return sum(one.cost_micros or 0 for one in charged)
            case Dimension.CONCURRENCY:
                return 0


def _tokens(record: UsageRecord) -> int:
    return record.prompt_tokens + record.completion_tokens


class Client:
    """Sends requests, and leaves when it likes."""

    def __init__(self, server: Server, tight_key: str, choose: random.Random) -> None:
        self._choose = choose
        self._keys = (server.key, server.key, server.key, tight_key)
        self._tight_key = tight_key
        self._url = f"{server.base_url}/v1/chat/completions"
        self.seen = Seen()
        self._progress = asyncio.Condition()

    async def send(self) -> None:
        """One request, on a connection of its own: leaving it closes the socket."""
        key = self._choose.choice(self._keys)
        body = self._body()
        patience_s = self._choose.expovariate(4.0) if self._choose.random() < 0.4 else 120.0
        async with httpx.AsyncClient(timeout=120.0, trust_env=False) as client:
            try:
                async with asyncio.timeout(patience_s):
                    end = await self._answer(client, key, body)
            except TimeoutError:
                end = "left"
            except httpx.HTTPError as error:
                end = type(error).__name__
        self.seen.ends[end] += 1
        async with self._progress:
            self._progress.notify_all()

    async def ended(self, number: int) -> None:
        """Until so many requests have ended."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.seen.ends.total() >= number)

    def _body(self) -> dict[str, Any]:
        choose = self._choose
        body: dict[str, Any] = {
            "model": choose.choice(MODELS),
            "messages": [{"role": "user", "content": "word " * choose.randint(1, 40)}],
            "stream": choose.random() < 0.6,
        }
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        if body["model"] == "model" or choose.random() < 0.5:
            body["max_tokens"] = choose.randint(1, 12)
        return body

    async def _answer(self, client: httpx.AsyncClient, key: str, body: dict[str, Any]) -> str:
        headers = {"authorization": f"Bearer {key}"}
        async with client.stream("POST", self._url, json=body, headers=headers) as response:
            raw = (await response.aread()).decode()
        if response.status_code != 200:
            return str(response.status_code)
        *events, last = _events(raw) if body["stream"] else [json.loads(raw)]
        if "error" in last or not last.get("usage"):
            return "cut"
        del events
        tokens = last["usage"]["total_tokens"]
        self.seen.answers[last["id"].partition("-")[2]] = tokens
        if key == self._tight_key:
            self.seen.tight_tokens += tokens
        return "whole"


def _events(raw: str) -> list[dict[str, Any]]:
    lines = [line for line in raw.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines] or [{}]


async def load(client: Client, num_requests: int) -> None:
    """`NUM_AT_ONCE` at a time."""
    numbers = iter(range(num_requests))

    async def work() -> None:
        for _ in numbers:
            await client.send()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_AT_ONCE):
            tasks.create_task(work())


async def kill(server: Server, client: Client, num_requests: int) -> list[str]:
    """Kill things at certain points of the load; what was killed, and when."""
    story: list[str] = []
    for share, what in ((0.2, "backends.host"), (0.4, "gateway.server"), (0.6, "backends.host")):
        await client.ended(round(share * num_requests))
        pid = next(iter(server.pids(what)))
        os.kill(pid, signal.SIGKILL)
        story.append(f"{what} after {client.seen.ends.total()} requests")
    return story


async def books(home: Path, store: LimitStore) -> Books:
    """As they are now."""
    database = await UsageStore.open(home)
    try:
        records = tuple([one async for one in database.records(Selection())])
    finally:
        await database.aclose()
    return Books(usage=await store.usage(), records=records)


async def settled(home: Path, store: LimitStore) -> tuple[Books, float]:
    """The books once nothing is reserved and no record waits, and how long that took; or as they
    are when the time for it is over."""
    began_s = time.monotonic()
    while True:
        now = await books(home, store)
        waited_s = time.monotonic() - began_s
        if (not now.reserved and _agree(now)) or waited_s > CHECK_TIMEOUT_S:
            return now, waited_s
        await asyncio.sleep(0.5)


def _agree(now: Books) -> bool:
    return all(used == recorded for _, used, recorded in compare(now))


def compare(now: Books) -> Iterator[tuple[str, int, int]]:
    """Each counter, and the sum of the records."""
    for limit, plan in (("everything", "demo"), ("tight", "tight")):
        for dimension in Dimension:
            if dimension is Dimension.CONCURRENCY or (limit == "tight" and _is_free(dimension)):
                continue
            name = f"{limit} {dimension.value}"
            yield name, now.used(limit, dimension), now.recorded(plan, dimension)


def _is_free(dimension: Dimension) -> bool:
    return dimension not in (Dimension.TOKENS, Dimension.REQUESTS)


async def run(kind: str, num_requests: int, seed: int) -> bool:
    """One round on one store; whether the books were right."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnout-chaos-")))
        address = "sqlite"
        if kind == "redis":
            address = stack.enter_context(serving_valkey(directory)).url
        policy = POLICY.read_text().replace("smollm2-135m-instruct", str(MODEL_FILE))
        server = stack.enter_context(
            serving(policy, TURNOUT_STORE=address, TURNOUT_WORKERS=str(NUM_GATEWAYS))
        )
        client = Client(server, server.new_key("tight", "tight"), random.Random(seed))
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(kill(server, client, num_requests))
            tasks.create_task(load(client, num_requests))
        load_s = time.monotonic() - began_s
        async with AsyncExitStack() as closing:
            store = await opened(kind, address, server.home)
            closing.push_async_callback(store.aclose)
            now, waited_s = await settled(server.home, store)
        print(f"\n{kind}, seed {seed}: {num_requests} requests in {load_s:.0f} s", flush=True)
        print(f"  clients saw    {dict(client.seen.ends.most_common())}")
        print(f"  killed         {'; '.join(killing.result())}")
        return tell(client.seen, now, waited_s)


async def opened(kind: str, address: str, home: Path) -> LimitStore:
    """The store that the gateways use."""
    if kind == "redis":
        return RedisStore.open(address)
    return await SqliteStore.open(home / "limits.db", clock=time.monotonic)


def tell(seen: Seen, now: Books, waited_s: float) -> bool:
    """Print the books; whether they are right."""
    print(f"  {'counter':26} {'counted':>12} {'recorded':>12}")
    for name, used, recorded in compare(now):
        print(f"  {name:26} {used:12,} {recorded:12,}{'' if used == recorded else '  WRONG'}")
    by_id = {one.request_id: one for one in now.records}
    wrong = [i for i, tokens in seen.answers.items() if i in by_id and _tokens(by_id[i]) != tokens]
    free = [i for i in seen.answers if i not in by_id]
    tight = now.used("tight", Dimension.TOKENS)
    checks = (
        ("reserved", now.reserved, now.reserved == 0),
        ("records", len(now.records), len(by_id) == len(now.records)),
        ("whole answers with other figures in their record", len(wrong), not wrong),
        # an answer is charged right after its last byte: killed in between, it is free
        ("whole answers without a record (kill -9)", len(free), len(free) <= NUM_AT_ONCE),
        (f"tokens of the tight key, of {TIGHT_TOKENS:,}", tight, tight <= TIGHT_TOKENS),
        ("tokens its clients saw", seen.tight_tokens, seen.tight_tokens <= TIGHT_TOKENS),
        (f"seconds until all was settled, of {LEASE_TTL_S:g} and some", round(waited_s), True),
        ("counters that are their records' sum", sum(1 for _ in compare(now)), _agree(now)),
    )
    for what, number, is_right in checks:
        print(f"  {what:52} {number:8,}{'' if is_right else '  WRONG'}")
    return all(is_right for *_, is_right in checks)


def main() -> None:
    """Every store that several gateways can share."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "redis"), action="append")
    arguments = parser.parse_args()
    stores: list[str] = arguments.store or ["sqlite", "redis"]
    results = [asyncio.run(run(kind, arguments.requests, arguments.seed)) for kind in stores]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
