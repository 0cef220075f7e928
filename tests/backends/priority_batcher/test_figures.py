"""What the batcher counts of its batches and passes."""

from __future__ import annotations

from backends.priority_batcher.batcher import PriorityBatcher
from native_engine.batch_stats import BatchStats
from native_engine.types import StepBatch
from tests.backends.priority_batcher.harness import drain, make_batcher
from tests.native_engine.harness import Clock, make_request
from tests.native_engine.stub_runner import StubRunner


def stats_of(batcher: PriorityBatcher) -> BatchStats:
    stats = batcher.stats().batches
    assert stats is not None
    return stats


def test_a_batch_that_joins_another_says_why() -> None:
    batcher = make_batcher(StubRunner(), waiting_served_ratio=0.5, max_waiting_tokens=3)
    for name in "ab":
        batcher.add(make_request(name, max_tokens=12))
    batcher.step()
    batcher.add(make_request("c", max_tokens=12))
    batcher.step()
    assert dict(stats_of(batcher).concats) == {
        "backpressure": 1,
        "chunking": 0,
        "wait_exceeded": 0,
    }
    for name in "de":
        batcher.add(make_request(name, max_tokens=12))
        batcher.step()
        for _ in range(3):
            batcher.step()
    drain(batcher)
    stats = stats_of(batcher)
    assert dict(stats.concats)["wait_exceeded"] == 1
    assert dict(stats.concats)["backpressure"] == 2
    assert stats.next_size.counts[:2] == (3, 1)
    assert stats.next_size.total == 5


def test_with_chunking_the_reason_is_chunking() -> None:
    batcher = make_batcher(StubRunner(), chunking=True)
    batcher.add(make_request("a"))
    batcher.step()
    batcher.add(make_request("b"))
    drain(batcher)
    assert dict(stats_of(batcher).concats)["chunking"] == 1


def test_tells_what_is_reserved_and_what_may_be() -> None:
    batcher = make_batcher(StubRunner(num_blocks=64, block_size=4))
    for name in "ab":
        batcher.add(make_request(name, prompt=5, max_tokens=6))
    batcher.step()
    stats = stats_of(batcher)
    assert (stats.current_max_tokens, stats.max_total_tokens) == (22, 256)
    drain(batcher)
    assert stats_of(batcher).current_max_tokens == 0


def test_passes_are_timed_by_what_they_are() -> None:
    runner, clock = StubRunner(), Clock()
    batcher = make_batcher(runner, clock=clock)

    def take_a_second(batch: StepBatch) -> None:
        clock.now_s += 1.0

    runner.on_execute = take_a_second
    batcher.add(make_request("a", max_tokens=4))
    drain(batcher)

    passes = dict(stats_of(batcher).passes)
    assert (passes["prefill"].num_begun, passes["prefill"].num_succeeded) == (1, 1)
    assert (passes["decode"].num_begun, passes["decode"].num_succeeded) == (3, 3)
    assert passes["decode"].forward_s.total == passes["decode"].inference_s.total == 3.0
    assert sum(passes["decode"].forward_s.counts) == 3


def test_a_pass_that_fails_is_counted_and_not_timed() -> None:
    runner = StubRunner()
    batcher = make_batcher(runner)

    def explode(batch: StepBatch) -> None:
        raise RuntimeError("injected")

    runner.on_execute = explode
    batcher.add(make_request("a"))
    batcher.step()

    prefill = dict(stats_of(batcher).passes)["prefill"]
    assert (prefill.num_begun, prefill.num_succeeded, prefill.num_failed) == (1, 0, 1)
    assert prefill.forward_s.total == 0.0
