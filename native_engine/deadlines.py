"""Which sequences are out of time. Knows no clock: the time is an argument."""

from __future__ import annotations

import bisect
import itertools
import math

from native_engine.sequence import Sequence


class Deadlines:
    """Sequences that have a deadline, the nearest first, waiting or running."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def next_s(self) -> float:
        """The nearest deadline; infinity if there is none."""
        return self._sequences[0].deadline_s if self._sequences else math.inf

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.deadline_s < math.inf:
            bisect.insort(self._sequences, sequence, key=_deadline)

    def remove(self, sequence: Sequence) -> None:
        """Watch a sequence no longer that was added once."""
        if sequence.deadline_s < math.inf:
            del self._sequences[
                bisect.bisect_left(self._sequences, _deadline(sequence), key=_deadline)
            ]

    def overdue(self, now_s: float) -> list[Sequence]:
        """Those whose deadlines have come. They stay until they are removed."""
        return list(itertools.takewhile(lambda s: s.deadline_s <= now_s, self._sequences))


def _deadline(sequence: Sequence) -> tuple[float, int]:
    return sequence.deadline_s, sequence.arrival
