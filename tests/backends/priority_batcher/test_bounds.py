"""What classes promise each other under overload: the formulas of `docs/priority_batcher.md`.

A stay is the time from joining the line to leaving it; an answer that goes on stays again. It is
counted in iterations, which are the calls of `next_batch`.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from native_engine.types import EngineRequest
from tests.backends.priority_batcher.harness import Admitted, admission_log, make_batcher
from tests.native_engine.harness import make_request
from tests.native_engine.stub_runner import StubRunner

NUM_TRACES = 120
CLASSES = (-1, 0, 1)
MAX_PROMPT, MAX_NEW = 20, 12


@dataclass(slots=True)
class Stay:
    priority: int
    since: int  # the iteration after which it began
    num_ahead: int  # of its class
    num_left: int = 0  # of its class, since
    num_lower: int = 0  # admitted from lower classes, since


class Overload:
    """Three classes ask for more than there is, and then no more; every stay is held to the
    bounds.
    """

    def __init__(self, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.runner = StubRunner(num_blocks=choose.choice([12, 20, 40]), block_size=4)
        self.generation_length = choose.choice([3, 1000])
        self.aging, self.max_bypass = choose.choice([1, 2, 5, 12]), choose.choice([0, 1, 3])
        chunking = choose.random() < 0.4
        self.options: dict[str, Any] = {
            "max_waiting_tokens": self.aging,
            "max_bypass": self.max_bypass,
            "waiting_served_ratio": choose.choice([0.0, 0.3, 1.2]),
            "max_batch_prefill_tokens": choose.choice([6, 24]) if chunking else 40,
            "max_input_tokens": MAX_PROMPT,
            "max_total_tokens": MAX_PROMPT + MAX_NEW,
            "max_batch_size": choose.choice([0, 0, 2]),
            "default_generation_length": self.generation_length,
            "chunking": chunking,
            "prefix_caching": choose.random() < 0.5,
            "max_concurrent_requests": 4000,
        }
        self.batcher = make_batcher(self.runner, **self.options)
        self.stays: dict[str, Stay] = {}
        self.priorities: dict[str, int] = {}
        self.tally: Counter[str] = Counter()

    @property
    def longest_turn(self) -> int:
        """R: how many iterations an admission holds its blocks at most."""
        prefill = MAX_PROMPT + MAX_NEW if self.options["chunking"] else 0
        return min(self.generation_length, MAX_NEW) + prefill

    def run(self, log: list[Admitted]) -> None:
        choose = self.choose
        rate = choose.choice([0.3, 1.0])
        for index in range(choose.choice([30, 90])):
            if choose.random() < rate:
                self.arrive(str(index))
            if choose.random() < 0.05 and self.stays:
                self.abort(choose.choice(list(self.stays)))
            self.step(log)
        while self.batcher.has_work:
            self.step(log)

    def arrive(self, name: str) -> None:
        request = self.request(name)
        self.priorities[name] = request.priority
        self.batcher.add(request)
        self.begin_stays()

    def request(self, name: str) -> EngineRequest:
        choose = self.choose
        return make_request(
            name,
            prompt=tuple(choose.randrange(50) for _ in range(choose.choice([1, 4, MAX_PROMPT]))),
            max_tokens=choose.randint(1, MAX_NEW),
            priority=choose.choice(CLASSES),
        )

    def abort(self, name: str) -> None:
        self.batcher.abort(name)
        self.leave(name, is_admitted=False)

    def step(self, log: list[Admitted]) -> None:
        num_logged = len(log)
        self.batcher.step()
        self.batcher.check_invariants()
        for iteration, names in log[num_logged:]:
            for name in names:
                self.check(self.leave(name), iteration)
        self.begin_stays()

    def leave(self, name: str, *, is_admitted: bool = True) -> Stay:
        left = self.stays.pop(name)
        for stay in self.stays.values():
            stay.num_left += stay.priority == left.priority
            stay.num_lower += is_admitted and stay.priority > left.priority
        return left

    def begin_stays(self) -> None:
        """Of those in line who were not: new ones, and answers that go on."""
        ahead: Counter[int] = Counter()
        for entry in self.batcher._queue:
            if entry.request_id not in self.stays:
                self.stays[entry.request_id] = Stay(
                    entry.priority, self.batcher._queue.iteration, ahead[entry.priority]
                )
            ahead[entry.priority] += 1

    def check(self, stay: Stay, iteration: int) -> None:
        waited = iteration - stay.since
        most_lower = self.most_lower(stay, waited)
        assert stay.num_lower <= most_lower, stay
        longest = (stay.num_ahead + 1) * self.longest_wait_of_the_first(stay.priority)
        assert waited <= longest, stay
        self.tally["passed by lower"] += stay.num_lower > 0
        self.tally["as many as may"] += 0 < stay.num_lower == most_lower
        self.tally["long"] += waited > longest / 4
        self.tally["low"] += stay.priority < max(CLASSES)

    def most_lower(self, stay: Stay, waited: int) -> int:
        by_age = sum(
            1 + waited // (self.aging * (stay.priority - lower))
            for lower in CLASSES
            if lower < stay.priority
        )
        return by_age + self.max_bypass * (1 + stay.num_left)

    def longest_wait_of_the_first(self, priority: int) -> int:
        aging = self.aging * (max(CLASSES) - priority)
        turn = (self.max_bypass + 1) * self.longest_turn + 1
        return aging + len(CLASSES) * turn


def test_under_overload_every_class_keeps_its_bounds() -> None:
    """E-PRIORITY-STARVE: few lower ones go before a request, and a low one does not wait long."""
    tally: Counter[str] = Counter()
    for seed in range(NUM_TRACES):
        with admission_log() as log:
            overload = Overload(seed)
            overload.run(log)
            assert not overload.stays
        tally += overload.tally
    assert tally["passed by lower"] > 100, tally
    assert tally["as many as may"] > 10, tally
    assert tally["low"] > 1000, tally


def test_a_backlog_of_a_low_class_only_keeps_moving() -> None:
    """However old it is: one of it for each 6 iterations (3 for each class) while others wait."""
    batcher = make_batcher(StubRunner(), max_batch_size=1, max_waiting_tokens=3)
    for index in range(60):
        batcher.add(make_request(f"low {index}", max_tokens=2, priority=-1))
    for _ in range(40):
        batcher.step()
    for index in range(12):
        batcher.add(make_request(f"high {index}", max_tokens=2, priority=1))
    with admission_log() as log:
        while not log or log[-1][1] != ["high 11"]:
            batcher.step()
    num_lower = sum(name.startswith("low") for _, (name,) in log)
    iterations = log[-1][0] - log[0][0] + 1
    assert 2 <= num_lower <= 1 + iterations // 6
