from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from backends.static_batch.fastchat.dispatch import (
    DispatchMethod,
    Registry,
    WorkerStatus,
    model_names,
    total,
)

EXPIRATION_S = 90.0


def status(*models: str, speed: float = 1.0, queue_length: int = 0) -> WorkerStatus:
    return WorkerStatus(model_names=models or ("vicuna",), speed=speed, queue_length=queue_length)


def registry(_method: DispatchMethod = "shortest_queue", **workers: WorkerStatus) -> Registry:
    """Workers that registered at second 0, in order."""
    made = Registry(_method, EXPIRATION_S)
    for address, word in workers.items():
        made.register(address, word, 0.0)
    return made


def picked(registry: Registry, *, model: str = "vicuna", draw: float = 0.0) -> str | None:
    worker = registry.pick(model, 1.0, draw)
    return None if worker is None else worker.address


def addresses(registry: Registry, now_s: float) -> list[str]:
    return [worker.address for worker in registry.workers(now_s)]


def test_the_shortest_queue_for_its_speed_is_next() -> None:
    workers = registry(
        slow=status(speed=1.0, queue_length=2),
        fast=status(speed=4.0, queue_length=6),
        other=status("llama"),
    )

    assert picked(workers) == "fast"


def test_of_equal_queues_the_one_that_registered_first_is_next() -> None:
    assert picked(registry(a=status(queue_length=1), b=status(queue_length=1))) == "a"


def test_a_worker_that_was_picked_counts_as_busier_until_it_says_otherwise() -> None:
    workers = registry(a=status(), b=status())

    assert [picked(workers) for _ in range(4)] == ["a", "b", "a", "b"]

    assert workers.receive_heart_beat("b", 0, 2.0)
    assert [picked(workers) for _ in range(3)] == ["b", "b", "a"]


@given(
    queues=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    num_picks=st.integers(1, 60),
)
def test_shortest_queue_levels_what_it_is_told(queues: list[int], num_picks: int) -> None:
    lengths = enumerate(queues)
    workers = registry("shortest_queue", **{f"w{i}": status(queue_length=n) for i, n in lengths})

    for _ in range(num_picks):
        picked(workers)

    after = [worker.status.queue_length for worker in workers.workers(1.0)]
    assert sum(after) == sum(queues) + num_picks
    grown = [now for now, before in zip(after, queues, strict=True) if now > before]
    assert max(grown) - min(after) <= 1


def test_a_lottery_is_won_in_proportion_to_speed() -> None:
    workers = registry("lottery", a=status(speed=1.0), b=status(speed=3.0), c=status("llama"))

    wins = Counter(picked(workers, draw=i / 1000) for i in range(1000))

    assert wins == {"a": 250, "b": 750}


@given(speeds=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=8), draw=st.floats(0, 1))
def test_every_ticket_of_a_lottery_wins_somebody(speeds: list[float], draw: float) -> None:
    workers = registry("lottery", **{f"w{i}": status(speed=s) for i, s in enumerate(speeds)})

    assert picked(workers, draw=draw) is not None


@pytest.mark.parametrize("method", ["lottery", "shortest_queue"])
def test_nobody_is_picked_for_a_model_that_nobody_serves(method: DispatchMethod) -> None:
    workers = registry(method, a=status("llama"), idle=status("vicuna", speed=0.0))

    assert picked(workers) is None


@pytest.mark.parametrize("method", ["lottery", "shortest_queue"])
def test_those_that_were_tried_are_passed_over(method: DispatchMethod) -> None:
    workers = registry(method, a=status(), b=status(queue_length=5))

    worker = workers.pick("vicuna", 1.0, 0.0, without={"a"})

    assert worker is not None
    assert worker.address == "b"
    assert workers.pick("vicuna", 1.0, 0.0, without={"a", "b"}) is None


def test_a_worker_is_gone_when_it_was_not_heard_of_for_the_expiration() -> None:
    workers = registry(a=status(), b=status())
    workers.receive_heart_beat("b", 3, 50.0)

    assert addresses(workers, 90.0) == ["a", "b"]
    assert addresses(workers, 90.1) == ["b"]
    assert addresses(workers, 140.1) == []


def test_a_worker_that_sends_no_heartbeats_stays() -> None:
    workers = Registry("shortest_queue", EXPIRATION_S)
    workers.register("a", status(), 0.0, check_heart_beat=False)

    assert addresses(workers, 1e9) == ["a"]


def test_an_unknown_heartbeat_says_so_that_the_worker_registers_again() -> None:
    workers = registry(a=status())

    assert not workers.receive_heart_beat("b", 0, 1.0)
    assert not workers.receive_heart_beat("a", 0, 91.0)
    assert addresses(workers, 91.0) == []


def test_a_heartbeat_replaces_the_queue_and_keeps_all_else() -> None:
    workers = Registry("shortest_queue", EXPIRATION_S)
    workers.register("a", status("x", speed=2.0), 5.0, check_heart_beat=True, multimodal=True)

    workers.receive_heart_beat("a", 7, 8.0)

    [worker] = workers.workers(8.0)
    assert worker.status == status("x", speed=2.0, queue_length=7)
    assert (worker.registered_s, worker.last_heard_s) == (5.0, 8.0)
    assert worker.multimodal
    assert worker.check_heart_beat


def test_a_worker_that_is_asked_may_say_anything_or_is_forgotten() -> None:
    workers = registry(a=status())
    [worker] = workers.workers(0.0)

    workers.refresh(worker, status("x", queue_length=4), 50.0)
    [now] = workers.workers(130.0)
    assert now.status == status("x", queue_length=4)
    assert (now.registered_s, now.last_heard_s) == (0.0, 50.0)

    workers.refresh(now, None, 131.0)
    assert addresses(workers, 131.0) == []


@pytest.mark.parametrize("word", [None, status("old")])
def test_a_late_word_of_an_old_registration_is_void(word: WorkerStatus | None) -> None:
    workers = registry(a=status())
    [old] = workers.workers(0.0)
    workers.register("a", status("new"), 1.0)

    workers.refresh(old, word, 2.0)

    assert model_names(workers.workers(2.0)) == ["new"]


def test_a_late_word_does_not_bring_back_who_is_gone() -> None:
    workers = registry(a=status())
    [old] = workers.workers(0.0)

    assert addresses(workers, 91.0) == []
    workers.refresh(old, status(), 92.0)

    assert addresses(workers, 92.0) == []


def test_tells_the_models_of_all_workers_once() -> None:
    workers = registry(a=status("x", "y"), b=status("y", "a"))

    assert model_names(workers.workers(0.0)) == ["a", "x", "y"]


def test_a_controller_stands_for_the_sum_of_its_workers() -> None:
    assert total([status("b", speed=1.5, queue_length=2), status("a", "b", queue_length=3)]) == (
        status("a", "b", speed=2.5, queue_length=5)
    )
    assert total([]) == WorkerStatus(model_names=(), speed=0, queue_length=0)
