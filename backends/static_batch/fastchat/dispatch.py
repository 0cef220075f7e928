"""Which workers there are, and which of them the next request goes to: FastChat's rules.

A worker is known by its address. Time and randomness are arguments and nothing here does I/O. Who
has not been heard of for `expiration_s` is gone at the next look; FastChat looks once in that time
and so keeps a dead worker for up to twice as long.

Source: the controller of FastChat 0.2.36. Knows no HTTP and no prompts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

DispatchMethod = Literal["lottery", "shortest_queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """What a worker says of itself, or a controller of all its workers."""

    model_names: tuple[str, ...]
    speed: float  # only ratios matter; 0 takes no work
    queue_length: int  # requests that run or wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One registration."""

    address: str
    status: WorkerStatus
    registered_s: float
    last_heard_s: float
    check_heart_beat: bool = True  # without, it stays until it is removed
    multimodal: bool = False


class Registry:
    """All registrations, in the order they were first made. Seconds are of one monotonic clock."""

    def __init__(self, method: DispatchMethod, expiration_s: float) -> None:
        self._method: DispatchMethod = method
        self._expiration_s = expiration_s
        self._workers: dict[str, Worker] = {}

    def workers(self, now_s: float) -> tuple[Worker, ...]:
        """Those that are there; forgets the others."""
        self._workers = {
            address: worker
            for address, worker in self._workers.items()
            if not worker.check_heart_beat or worker.last_heard_s >= now_s - self._expiration_s
        }
        return tuple(self._workers.values())

    def register(
        self,
        address: str,
        status: WorkerStatus,
        now_s: float,
        *,
        check_heart_beat: bool = True,
        multimodal: bool = False,
    ) -> None:
        """Add a worker, or take its new word in place of the old one."""
        self._workers[address] = Worker(
            address=address,
            status=status,
            registered_s=now_s,
            last_heard_s=now_s,
            check_heart_beat=check_heart_beat,
            multimodal=multimodal,
        )

    def receive_heart_beat(self, address: str, queue_length: int, now_s: float) -> bool:
        """Whether the worker is known; if not, it should register again."""
        self.workers(now_s)
        worker = self._workers.get(address)
        if worker is None:
            return False
        self._workers[address] = replace(_with_queue(worker, queue_length), last_heard_s=now_s)
        return True

    def refresh(self, worker: Worker, status: WorkerStatus | None, now_s: float) -> None:
        """Take a worker's word on being asked, or forget it for giving none (None).

        Void if it has registered anew or expired meanwhile.
        """
        current = self._workers.get(worker.address)
        if current is None or current.registered_s != worker.registered_s:
            return
        if status is None:
            del self._workers[worker.address]
        else:
            self._workers[worker.address] = replace(current, status=status, last_heard_s=now_s)

    def pick(
        self, model: str, now_s: float, draw: float, *, without: Collection[str] = ()
    ) -> Worker | None:
        """A worker that serves the model; None if none does. `draw` is in [0, 1).

        Those at the addresses `without` are passed over.

        By `lottery`, with a probability in proportion to its speed. By `shortest_queue`, the one
        with the least queue for its speed, which counts as longer by one until its next heartbeat.
        """
        able = [
            worker
            for worker in self.workers(now_s)
            if model in worker.status.model_names
            and worker.status.speed > 0.0
            and worker.address not in without
        ]
        if not able:
            return None
        if self._method == "lottery":
            return _drawn(able, draw)
        shortest = min(able, key=lambda worker: worker.status.queue_length / worker.status.speed)
        longer = _with_queue(shortest, shortest.status.queue_length + 1)
        self._workers[shortest.address] = longer
        return longer


def model_names(workers: Iterable[Worker]) -> list[str]:
    """The models that any of them serves, sorted."""
    return sorted({name for worker in workers for name in worker.status.model_names})


def total(statuses: Iterable[WorkerStatus]) -> WorkerStatus:
    """What a controller says when another one takes it for a worker."""
    known = tuple(statuses)
    names = {name for status in known for name in status.model_names}
    return WorkerStatus(
        model_names=tuple(sorted(names)),
        speed=sum(status.speed for status in known),
        queue_length=sum(status.queue_length for status in known),
    )


def _with_queue(worker: Worker, queue_length: int) -> Worker:
    return replace(worker, status=replace(worker.status, queue_length=queue_length))


def _drawn(workers: list[Worker], draw: float) -> Worker:
    left = draw * sum(worker.status.speed for worker in workers)
    for worker in workers:
        left -= worker.status.speed
        if left < 0.0:
            return worker
    return workers[-1]  # rounding left a little over
