"""Counts batches and forward passes, as TGI's router does. Knows no clock and no requests."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

from native_engine.batch_stats import (
    SECONDS_EDGES,
    SIZE_EDGES,
    BatchStats,
    Distribution,
    PassStats,
)

Method = Literal["prefill", "decode"]
"""A pass that lets somebody in is a prefill, whatever else it computes."""

Concat = Literal["backpressure", "chunking", "wait_exceeded"]
"""Why a batch joined one that runs: there were enough, it always may, they had waited enough."""


class Figures:
    """Of one batcher, since it started."""

    def __init__(self) -> None:
        self._concats: dict[Concat, int] = {"backpressure": 0, "chunking": 0, "wait_exceeded": 0}
        self._next_size = _Histogram(SIZE_EDGES)
        self._passes: dict[Method, _Passes] = {"prefill": _Passes(), "decode": _Passes()}

    def admit(self, size: int, concat: Concat | None) -> None:
        """Count a batch of so many; `concat` unless nobody ran."""
        self._next_size.observe(size)
        if concat is not None:
            self._concats[concat] += 1

    def begin(self, method: Method) -> None:
        self._passes[method].num_begun += 1

    def fail(self, method: Method) -> None:
        self._passes[method].num_failed += 1

    def end(self, method: Method, *, forward_s: float, inference_s: float) -> None:
        """Count a pass that succeeded: the device's part, and all of it."""
        passes = self._passes[method]
        passes.num_succeeded += 1
        passes.forward_s.observe(forward_s)
        passes.inference_s.observe(inference_s)

    def snapshot(self, *, current_max_tokens: int, max_total_tokens: int) -> BatchStats:
        return BatchStats(
            current_max_tokens=current_max_tokens,
            max_total_tokens=max_total_tokens,
            concats=tuple(self._concats.items()),
            next_size=self._next_size.snapshot(),
            passes=tuple((method, passes.snapshot()) for method, passes in self._passes.items()),
        )


class _Histogram:
    __slots__ = ("_counts", "_edges", "_total")

    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._edges, value)] += 1
        self._total += value

    def snapshot(self) -> Distribution:
        return Distribution(counts=tuple(self._counts), total=self._total)


class _Passes:
    __slots__ = ("forward_s", "inference_s", "num_begun", "num_failed", "num_succeeded")

    def __init__(self) -> None:
        self.num_begun = self.num_succeeded = self.num_failed = 0
        self.forward_s, self.inference_s = _Histogram(SECONDS_EDGES), _Histogram(SECONDS_EDGES)

    def snapshot(self) -> PassStats:
        return PassStats(
            num_begun=self.num_begun,
            num_succeeded=self.num_succeeded,
            num_failed=self.num_failed,
            forward_s=self.forward_s.snapshot(),
            inference_s=self.inference_s.snapshot(),
        )
