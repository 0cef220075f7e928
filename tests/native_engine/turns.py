"""Who gets in before whom: promise 8, held against what an engine does at each step.

Knows who waited and who ran before a step and while it runs; counts turns, ages and passings
itself, and asks the engine only who its heads are.
"""

from __future__ import annotations

from collections import Counter

from native_engine.engine import Engine
from native_engine.sequence import Sequence, SequenceStatus
from tests.native_engine.peeking import heads, in_line, running


class Turns:
    """Watches one engine: tell it before each step, in it, and whenever anything else happened."""

    def __init__(self, engine: Engine, *, max_bypass: int, aging_s: float) -> None:
        self._engine = engine
        self._max_bypass = max_bypass
        self._aging_s = aging_s
        self._since_s: dict[int, float] = {}  # a class had a turn or began to wait, by priority
        self._waiting: list[Sequence] = []  # in line, when it was last looked
        self._before: list[Sequence] = []  # by rank
        self._heads: dict[int, Sequence] = {}
        self._passed: Counter[Sequence] = Counter()

    def look(self, now_s: float) -> list[Sequence]:
        """Note which classes wait since when. Returns those in line."""
        waiting = self._waiting = in_line(self._engine)
        since_s = self._since_s
        self._since_s = {s.priority: since_s.get(s.priority, now_s) for s in waiting}
        return waiting

    def before_step(self, now_s: float) -> None:
        """Note who runs and who is the head of a class. A class ends with its last deadline."""
        staying = {s.priority for s in self._waiting if s.deadline_s > now_s}
        self._since_s = {p: since_s for p, since_s in self._since_s.items() if p in staying}
        self._before = running(self._engine)
        self._heads = heads(self._engine)

    def inside_step(self, started_s: float) -> None:
        """Hold those that were admitted against those that still wait."""
        before, now = self._before, running(self._engine)
        if before and before[0].status is SequenceStatus.WAITING:
            assert now[0].rank < before[0].rank, "the first in order was preempted"
        began_s = self._since_s
        waiting = self.look(started_s)
        admitted = [s for s in now if s not in before]
        if not admitted:
            return
        for victim in before:  # blocks of one that gave way to growth are not for newcomers
            assert victim.status is not SequenceStatus.WAITING or any(
                s.priority > victim.priority and s.rank < victim.rank for s in admitted
            ), f"{victim} gave way to {admitted}"
        passings = self._passings(admitted, set(waiting))
        turns = Counter(s.priority for s in admitted)
        turns.subtract(passings)
        if waiting and +turns:
            self._check_classes(+turns, began_s, started_s, {s.priority for s in waiting})
        for priority in +turns:
            if priority in self._since_s:
                self._since_s[priority] = started_s

    def _passings(self, admitted: list[Sequence], waiting: set[Sequence]) -> Counter[int]:
        """How many of each class went before its head, which `max_bypass` may do in all.

        Of one that has become the head in this very step, only the engine knows.
        """
        passings: Counter[int] = Counter()
        for priority, head in heads(self._engine).items():
            if head in waiting:
                if self._heads.get(priority) is head:
                    passings[priority] = sum(s.priority == priority for s in admitted)
                else:
                    passings[priority] = head.num_bypasses - self._passed[head]
                self._passed[head] += passings[priority]
                assert self._passed[head] <= self._max_bypass, f"{head} is passed by too many"
                assert self._passed[head] == head.num_bypasses
        return passings

    def _check_classes(
        self, turns: Counter[int], began_s: dict[int, float], now_s: float, waiting: set[int]
    ) -> None:
        """A class has a turn before a higher one that waits only by its age, and before one that
        is due only if it is older.
        """
        lowest_top, top = max(waiting), max(*waiting, *turns, *began_s)
        for served, count in turns.items():
            since_s = began_s.get(served, now_s)
            assert served + self._age(since_s, now_s) >= lowest_top, f"{served} before {lowest_top}"
            since_s = since_s if count == 1 else now_s
            for other in waiting - turns.keys():
                is_due = other + self._age(self._since_s[other], now_s) >= top
                assert not is_due or since_s <= self._since_s[other], f"{served} before {other}"

    def _age(self, since_s: float, now_s: float) -> int:
        """In classes."""
        return int((now_s - since_s) / self._aging_s)
