"""Who is next in line: classes by priority and age, in a class tenants by what they were served,
of a tenant whoever has the nearest deadline.

Three rules, each inside the one before:

* A class counts as one higher for each `aging_s` since it last had a turn, or since it began to
  wait, up to the highest that waits. So d classes below it a class has a turn at least every
  `d * aging_s`, if anyone has. It is the class that ages and not the sequence: a tenant that queues
  a thousand requests gains nothing over its neighbours in the class by their age, and a backlog of
  a low class does not go before a high one, it only keeps moving.
* In a class the tenant with the least counter is next (`fairness`).
* Of a tenant, what was preempted goes first, then the nearest deadline, then the first to come.
  Without a deadline a sequence counts as due `PATIENCE_S` after it came, so that no flow of urgent
  ones keeps it waiting for ever. A single tenant without deadlines sees plain first come, first
  served.

The sequence so chosen stays the head of its class until it leaves, whatever comes later, but for
one of its own tenant that was preempted: what does not fit today must fit some day.

A sequence that is to be forked stands aside until its parent has computed the prompt, or will not
soon: then it lines up at its place by age. Knows no clock, no blocks and nothing of what runs.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator

from native_engine.fairness import Account
from native_engine.sequence import Sequence

PATIENCE_S = 600.0
"""Longer than clients wait, so that it decides only where a flow of deadlines would starve one."""


class WaitingQueue:
    """All waiting sequences. Adding, removing and asking for the head never look at all of them."""

    def __init__(self, *, aging_s: float) -> None:
        self.num_prompt_tokens = 0  # of all in line; what stands aside is computed by its parent
        self._aging_s = aging_s
        self._length = 0  # of the line
        self._classes: dict[int, _Class] = {}  # those that have sequences in line, by priority
        self.aside: list[Sequence] = []  # they wait for their parents

    def __len__(self) -> int:
        return self._length + len(self.aside)

    def __iter__(self) -> Iterator[Sequence]:
        """Higher classes first, in a class tenant by tenant."""
        for priority in sorted(self._classes, reverse=True):
            for queue in self._classes[priority].queues.values():
                yield from queue
        yield from self.aside

    @property
    def has_head(self) -> bool:
        """Whether anyone is in line."""
        return self._length > 0

    @property
    def highest_priority(self) -> int:
        """Of all in line; there must be one."""
        return max(self._classes)

    def add(self, sequence: Sequence, now_s: float) -> None:
        """Let a sequence wait, new or preempted."""
        if sequence.waits_for_parent:
            self.aside.append(sequence)
            return
        line = self._classes.get(sequence.priority)
        if line is None:
            line = self._classes[sequence.priority] = _Class(sequence.priority, now_s)
        bisect.insort(line.queues.setdefault(sequence.account, []), sequence, key=_urgency)
        if sequence.num_preemptions:
            line.yield_to(sequence)
        self._length += 1
        self.num_prompt_tokens += sequence.num_prompt_tokens

    def line_up(self, now_s: float) -> None:
        """Put those in line who need not stand aside any more."""
        if self.aside:
            aside, self.aside = self.aside, []
            for sequence in aside:
                self.add(sequence, now_s)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that waits, wherever it stands."""
        if sequence in self.aside:
            self.aside.remove(sequence)
            return
        line = self._classes[sequence.priority]
        queue = line.queues[sequence.account]
        del queue[bisect.bisect_left(queue, _urgency(sequence), key=_urgency)]
        if line.head is sequence:
            line.head = None
        if not queue:
            del line.queues[sequence.account]
            if not line.queues:
                del self._classes[sequence.priority]
        self._length -= 1
        self.num_prompt_tokens -= sequence.num_prompt_tokens

    def serve(self, head: Sequence, now_s: float) -> None:
        """Take out the head that was chosen: its class has had its turn."""
        line = self._classes[head.priority]
        head.standing = self._standing(line, now_s)
        line.since_s = now_s
        self.remove(head)

    def head(self, now_s: float) -> Sequence:
        """Who is next; there must be one. A class that waits longer goes before its equals."""
        if len(self._classes) == 1:
            (line,) = self._classes.values()
        else:
            line = max(
                self._classes.values(),
                key=lambda line: (self._standing(line, now_s), -line.since_s, line.priority),
            )
        return line.choose_head()

    def _standing(self, line: _Class, now_s: float) -> int:
        """The class that it counts as by now."""
        age = max(0, int((now_s - line.since_s) / self._aging_s))
        return min(line.priority + age, self.highest_priority)

    def behind(self, head: Sequence, most: int) -> list[Sequence]:
        """At most so many that could go before `head`, in order: of its class, and of tenants that
        would be next once it is in.

        Without the last condition a tenant of small requests would gain on one of large ones with
        each of them.
        """
        line = self._classes[head.priority]
        cost = head.prompt_charge
        fair = [a for a in line.queues if a.counter <= head.account.counter + cost]
        found: list[Sequence] = []
        for account in heapq.nsmallest(most, fair, key=lambda account: account.counter):
            found += [s for s in line.queues[account][: most + 1] if s is not head]
        return found[:most]


class _Class:
    """The waiting sequences of one priority, by tenant."""

    __slots__ = ("head", "priority", "queues", "since_s")

    def __init__(self, priority: int, now_s: float) -> None:
        self.priority = priority
        self.since_s = now_s  # it last had a turn, or began to wait
        self.head: Sequence | None = None  # once it has been chosen
        self.queues: dict[Account, list[Sequence]] = {}

    def choose_head(self) -> Sequence:
        if self.head is None:
            account = min(self.queues, key=lambda account: account.counter)
            self.head = self.queues[account][0]
        return self.head

    def yield_to(self, sequence: Sequence) -> None:
        """Let a preempted sequence be the head, if it goes before the one that is."""
        head = self.head
        if (
            head is not None
            and head.account is sequence.account
            and _urgency(sequence) < _urgency(head)
        ):
            self.head = sequence


def _urgency(sequence: Sequence) -> tuple[bool, float, int]:
    """Least for who is next of a tenant. Does not change while a sequence waits."""
    due_s = min(sequence.deadline_s, sequence.added_s + PATIENCE_S)
    return sequence.num_preemptions == 0, due_s, sequence.arrival
