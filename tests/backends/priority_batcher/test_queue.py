"""The queue by itself: who is in the next batch, by budgets, classes, age and passings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.priority_batcher.config import PriorityBatcherConfig
from backends.priority_batcher.queue import Entry, Queue
from native_engine.block_manager import BlockManager
from native_engine.prefix_hash import root_hash
from native_engine.types import SamplingParams

BLOCK_SIZE = 4


class Line:
    """A queue over blocks of 4 tokens; entries by name."""

    def __init__(self, *, num_blocks: int = 100, **options: Any) -> None:
        resolved: dict[str, Any] = {
            "max_batch_prefill_tokens": 1000,
            "max_waiting_tokens": 10,
            "default_generation_length": 1000,
        }
        config = PriorityBatcherConfig(model=Path("stub"), **{**resolved, **options})
        self.blocks = BlockManager(num_blocks=num_blocks, block_size=BLOCK_SIZE)
        self.queue = Queue(self.blocks, config)
        self.entries: dict[str, Entry] = {}

    def add(
        self,
        *names: str,
        prompt: int = 4,
        new: int = 4,
        priority: int = 0,
        first: int | None = None,
    ) -> None:
        """Prompts of so many tokens, all different but for those with the same `first`."""
        for name in names:
            start = 1000 * len(self.entries) if first is None else first
            entry = Entry(
                request_id=name,
                sampling=SamplingParams(max_tokens=new),
                arrival=len(self.entries),
                added_s=0.0,
                token_ids=list(range(start, start + prompt)),
                num_prompt_tokens=prompt,
                max_num_tokens=prompt + new,
                prefix_hashes=[root_hash("", "")],
                priority=priority,
            )
            self.entries[name] = entry
            self.queue.append(entry)

    def next(
        self,
        *,
        min_size: int = 0,
        max_size: int = 100,
        prefill_budget: int = 1000,
        token_budget: int = 1000,
    ) -> list[str]:
        return [name for name, _ in self.counts(min_size, max_size, prefill_budget, token_budget)]

    def counts(
        self,
        min_size: int = 0,
        max_size: int = 100,
        prefill_budget: int = 1000,
        token_budget: int = 1000,
    ) -> list[tuple[str, int]]:
        admissions = self.queue.next_batch(
            min_size=min_size,
            max_size=max_size,
            prefill_budget=prefill_budget,
            token_budget=token_budget,
        )
        self.queue.check_invariants()
        return [(entry.request_id, count) for entry, count in admissions]

    def order(self) -> list[str]:
        return [entry.request_id for entry in self.queue]

    def end(self, *names: str) -> None:
        for name in names:
            self.blocks.free(self.entries[name])

    def age(self, iterations: int) -> None:
        """Ask for nobody, so many times."""
        for _ in range(iterations):
            assert self.next(max_size=0) == []


def test_one_class_goes_in_the_order_of_arrival() -> None:
    line = Line()
    line.add("a", "b", "c")
    assert line.next(max_size=2) == ["a", "b"]
    line.add("d")
    assert line.next() == ["c", "d"]
    assert line.next() == []


@pytest.mark.parametrize(
    ("budget", "names"), [(9, ["a", "b", "c"]), (8, ["a", "b"]), (5, ["a", "b"]), (4, ["a"])]
)
def test_the_prefill_budget_counts_in_whole_blocks(budget: int, names: list[str]) -> None:
    line = Line()
    line.add("a", "b", "c", "d")
    assert line.next(prefill_budget=budget) == names
    assert line.order() == ["a", "b", "c", "d"][len(names) :]


def test_the_token_budget_is_of_prompts_and_answers() -> None:
    line = Line()
    line.add("a", "b", "c")
    assert line.next(token_budget=17) == ["a", "b"]


def test_the_first_that_does_not_fit_ends_the_batch_though_the_next_would() -> None:
    line = Line()
    line.add("a", "b", "c")
    line.add("long", prompt=40)
    line.add("short")
    assert line.next(prefill_budget=20) == ["a", "b", "c"]
    assert line.order() == ["long", "short"]


def test_a_whole_reservation_is_taken_or_nothing() -> None:
    """11 tokens with the last, whose KV nobody needs: 10 in blocks of 4."""
    line = Line(num_blocks=5)
    line.add("a", "b", prompt=3, new=8)
    assert line.next() == ["a"]
    assert len(line.entries["a"].block_table) == 3
    assert line.blocks.num_free_blocks == 2
    line.end("a")
    assert line.next() == ["b"]


def test_blocks_that_are_promised_to_one_are_not_promised_to_another() -> None:
    line = Line(num_blocks=5)
    line.add("a", "b", prompt=4, new=8)
    assert line.next() == ["a"]


def test_too_few_are_none_and_nothing_has_changed() -> None:
    line = Line()
    line.add("a", "b")
    line.add("long", prompt=40)
    assert line.next(min_size=3, prefill_budget=20) == []
    assert line.order() == ["a", "b", "long"]
    assert line.blocks.num_free_blocks == 100
    assert line.next(min_size=2, prefill_budget=20) == ["a", "b"]


def test_fewer_in_line_than_would_be_enough_are_not_looked_at() -> None:
    line = Line()
    line.add("a", "b")
    assert line.next(min_size=3) == []


def test_no_place_is_no_batch() -> None:
    line = Line()
    line.add("a")
    assert line.next(max_size=0) == []
    assert line.next(max_size=-2) == []


def test_with_chunking_the_last_gets_what_is_left() -> None:
    line = Line(chunking=True)
    line.add("a", "b", "c", prompt=10)
    assert line.counts(prefill_budget=16) == [("a", 10), ("b", 6)]
    assert line.order() == ["c"]
    assert len(line.entries["b"].block_table) == 4  # of its whole reservation


def test_with_chunking_nobody_is_let_in_to_compute_nothing() -> None:
    line = Line(chunking=True)
    line.add("a", "b", prompt=8)
    assert line.counts(prefill_budget=8) == [("a", 8)]
    assert line.counts(prefill_budget=0) == []
    assert line.counts(prefill_budget=-3) == []


def test_what_the_prefix_cache_has_costs_neither_prefill_nor_blocks_in_use() -> None:
    """Of a prompt that is there as a whole, one token is computed all the same."""
    line = Line(num_blocks=8)
    line.add("a", prompt=8, new=9, first=0)
    assert line.next() == ["a"]
    line.blocks.publish(line.entries["a"], 0, 2)
    line.add("b", prompt=8, new=9, first=0)
    assert line.counts(prefill_budget=4) == [("b", 4)]
    assert line.entries["b"].block_table[0] == line.entries["a"].block_table[0]
    assert line.blocks.num_free_blocks == 8 - 4 - 3


def test_too_few_give_back_what_they_found_cached() -> None:
    line = Line(num_blocks=8)
    line.add("a", prompt=8, new=9, first=0)
    line.next()
    line.blocks.publish(line.entries["a"], 0, 2)
    line.end("a")
    line.add("b", prompt=8, new=9, first=0)
    line.add("long", prompt=24, new=9)
    assert line.next(min_size=2, prefill_budget=8) == []
    assert line.entries["b"].block_table == []
    assert line.blocks.num_free_blocks == 8
    assert line.counts(prefill_budget=4) == [("b", 4)]


def test_an_answer_is_reserved_in_parts_that_can_be_prefilled_again() -> None:
    config = PriorityBatcherConfig(
        model=Path("stub"), max_batch_prefill_tokens=30, default_generation_length=10
    )
    assert config.reserved_until(5, 50) == 15
    assert config.reserved_until(5, 15) == 15
    assert config.reserved_until(5, 12) == 12
    assert config.reserved_until(20, 50) == 30
    assert config.reserved_until(21, 50) == 50  # 31 could not be prefilled at once
    assert config.reserved_until(5, 5) == 6


def test_a_higher_class_goes_first() -> None:
    line = Line()
    line.add("low", priority=-1)
    line.add("normal 1", "normal 2")
    line.add("high", priority=1)
    assert line.next() == ["high", "normal 1", "normal 2", "low"]


@pytest.mark.parametrize(("priority", "iterations"), [(0, 10), (-1, 20), (-3, 40)])
def test_a_class_has_its_turn_when_it_has_waited_for_each_class_above(
    priority: int, iterations: int
) -> None:
    """E-PRIORITY-STARVE: `max_waiting_tokens` (10) iterations for each class of distance."""
    for waited, expected in ((iterations - 2, ["high"]), (iterations - 1, ["old"])):
        line = Line()
        line.add("old", "old 2", priority=priority)
        line.age(waited)
        line.add("high", "high 2", priority=1)
        assert line.next(max_size=1) == expected


def test_a_class_that_has_had_its_turn_waits_anew() -> None:
    """However many of it wait, and for how long: it is the class that ages."""
    line = Line()
    line.add("old", "old 2", "old 3", priority=0)
    line.age(99)
    line.add("high", "high 2", priority=1)
    assert line.next(max_size=3) == ["old", "high", "high 2"]
    line.add("high 3", priority=1)
    line.age(8)
    assert line.next(max_size=1) == ["high 3"]
    line.add("high 4", priority=1)
    assert line.next(max_size=1) == ["old 2"]


def test_no_class_stands_higher_than_the_highest_that_waits() -> None:
    line = Line()
    line.add("lowest", priority=-2)
    line.age(1)
    line.add("low", priority=-1)
    line.age(99)
    assert line.next(max_size=1) == ["lowest"]  # both stand alike; it has waited longer


def test_a_lower_class_goes_on_with_what_a_higher_one_cannot_use() -> None:
    line = Line(max_bypass=2)
    line.add("long", prompt=40, priority=1)
    line.add("short of its class", priority=1)
    line.add("a", "b", "c")
    assert line.next(prefill_budget=20) == ["a", "b"]
    assert line.next(prefill_budget=20) == []
    assert line.next(prefill_budget=40) == ["long"]
    assert line.next(prefill_budget=20) == ["short of its class", "c"]


def test_nobody_passes_with_max_bypass_0() -> None:
    line = Line(max_bypass=0)
    line.add("long", prompt=40, priority=1)
    line.add("a")
    assert line.next(prefill_budget=20) == []
    assert line.next(prefill_budget=44) == ["long", "a"]


def test_passings_that_came_to_nothing_do_not_count() -> None:
    line = Line(max_bypass=1)
    line.add("long", prompt=40, priority=1)
    line.add("a", "b")
    assert line.next(prefill_budget=20, min_size=2) == []
    assert line.entries["long"].num_bypasses == 0
    assert line.next(prefill_budget=20) == ["a"]
    assert line.entries["long"].num_bypasses == 1


def test_a_class_that_comes_to_its_turn_by_age_is_passed_no_more_often() -> None:
    line = Line(max_bypass=1)
    line.add("old", prompt=40, priority=0)
    line.age(9)
    line.add("high", "high 2", priority=1)
    assert line.next(prefill_budget=20) == ["high"]
    assert line.next(prefill_budget=20) == []


def test_the_last_of_a_class_may_be_taken_out_anywhere() -> None:
    line = Line()
    line.add("a", "b", "c")
    line.queue.remove(line.entries["b"])
    assert line.next() == ["a", "c"]
    line.add("d")
    line.queue.remove(line.entries["d"])
    assert len(line.queue) == 0
    assert line.next() == []
