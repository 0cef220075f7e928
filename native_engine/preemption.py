"""Who gives way: to a running sequence that needs a block, or to a waiting one of a higher class.

Pure choices among running sequences; they are made to happen elsewhere. Each list of running
sequences is in the order of `Sequence.rank`, which never changes: a class is worth so many seconds
of waiting, and the first in order is the one that has to get on, whatever happens.
"""

from __future__ import annotations

from native_engine.sequence import Sequence


def choose_victim(running: list[Sequence], needy: Sequence) -> Sequence:
    """Whose blocks go to `needy`, perhaps its own. Never those of the first, nor, unless it is the
    first that needs one, of a higher class.

    Mutates nothing. `running` must hold `needy` and one more.
    """
    others = running[1:]
    if needy is not running[0]:
        others = [sequence for sequence in others if sequence.priority <= needy.priority]
    return min(others, key=_reluctance)


def choose_displaced(
    running: list[Sequence], newcomer: Sequence, *, num_blocks: int, num_places: int
) -> list[Sequence]:
    """Whom to preempt so that `newcomer` gets so many blocks and places more.

    As few of the displaceable as that takes; empty if all of them would not do.
    """
    chosen: list[Sequence] = []
    for sequence in sorted(displaceable(running, newcomer), key=_reluctance):
        chosen.append(sequence)
        num_blocks -= sequence.num_own_blocks
        num_places -= 1
        if num_blocks <= 0 and num_places <= 0:
            break
    else:
        return []
    for sequence in chosen[-2::-1]:  # what the last one gave may have made another needless
        if num_blocks + sequence.num_own_blocks <= 0 and num_places < 0:
            chosen.remove(sequence)
            num_blocks += sequence.num_own_blocks
            num_places += 1
    return chosen


def displaceable(running: list[Sequence], newcomer: Sequence) -> list[Sequence]:
    """The running sequences that `newcomer` may push out: those of lower classes, but for what had
    a turn by age where the newcomer had none, and what has been here so long that it ranks first.
    """
    return [
        sequence
        for sequence in running
        if sequence.standing < newcomer.priority and newcomer.rank < sequence.rank
    ]


def _reluctance(sequence: Sequence) -> tuple[int, float, int, int]:
    """Least for who goes first: the lowest class, in it the tenant that had most, of its sequences
    the one preempted least often so far, and of these the newest.
    """
    return (
        sequence.priority,
        -sequence.account.counter,
        sequence.num_preemptions,
        -sequence.arrival,
    )
