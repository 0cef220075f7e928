"""What an engine that batches by TGI's rule counts beside the rest, in the terms of TGI's metrics.

Plain values, counted since the engine started; who counts them is the engine's affair. Knows no
names of metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SECONDS_EDGES = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How many values lie up to each edge and above the one before, and above the last."""

    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStats:
    """Of the forward passes of one kind."""

    num_begun: int
    num_succeeded: int
    num_failed: int
    forward_s: Distribution  # on the device, in `SECONDS_EDGES`
    inference_s: Distribution  # and with what follows from it


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStats:
    """Of the batches of one engine."""

    current_max_tokens: int  # reserved by those that run
    max_total_tokens: int  # that may be reserved
    concats: tuple[tuple[str, int], ...]  # batches that joined a running one, by why they did
    next_size: Distribution  # requests of a batch that was put together, in `SIZE_EDGES`
    passes: tuple[tuple[str, PassStats], ...]  # "prefill" and "decode"
