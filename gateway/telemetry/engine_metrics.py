"""What engines say of themselves, under vLLM's names, with the backend's name as a label.

It comes with a backend's status and is shown as it was last heard. Gateway processes that share an
engine all hear the same, so the one that is scraped tells it. A backend that lives inside the
gateway's process is another one in each: those are added up (`gateway/telemetry/all_workers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.base import BackendStatus

LABEL = "model_name"


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    text: str
    value: Callable[[BackendStatus], float]
    mode: Literal["livesum", "livemax", "sum"]  # over processes, if each has a backend of its own


_FIGURES = (
    _Figure(
        "vllm:num_requests_running", "Running in the engine.", lambda s: s.num_running, "livesum"
    ),
    _Figure(
        "vllm:num_requests_waiting", "Queued in the engine.", lambda s: s.num_waiting, "livesum"
    ),
    _Figure(
        "vllm:kv_cache_usage_perc",
        "KV blocks in use, 0 to 1.",
        lambda s: (s.kv_blocks_total - s.kv_blocks_free) / max(s.kv_blocks_total, 1),
        "livemax",
    ),
    _Figure(
        "vllm:prompt_tokens_total",
        "Prompt tokens computed or found cached.",
        lambda s: s.prompt_tokens_total,
        "sum",
    ),
    _Figure(
        "vllm:generation_tokens_total",
        "Tokens generated.",
        lambda s: s.generation_tokens_total,
        "sum",
    ),
    _Figure(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked for in the cache.",
        lambda s: s.prefix_cache_queries,
        "sum",
    ),
    _Figure(
        "vllm:prefix_cache_hits_total",
        "Prompt tokens found cached.",
        lambda s: s.prefix_cache_hits,
        "sum",
    ),
    _Figure(
        "vllm:spec_decode_num_draft_tokens_total",
        "Tokens guessed ahead.",
        lambda s: s.num_draft_tokens,
        "sum",
    ),
    _Figure(
        "vllm:spec_decode_num_accepted_tokens_total",
        "Of these, found right.",
        lambda s: s.num_accepted_tokens,
        "sum",
    ),
)


class EngineMetrics(Collector):
    """Of all backends, as they were last heard."""

    def __init__(self, summed: Collection[str] = ()) -> None:
        """summed: the backends that each of several gateway processes has an own one of."""
        self._summed = frozenset(summed)
        self._heard: dict[str, BackendStatus] = {}
        self._gauges = (
            [
                (Gauge(one.name, one.text, [LABEL], registry=None, multiprocess_mode=one.mode), one)
                for one in _FIGURES
            ]
            if summed
            else []
        )

    def show(self, statuses: Mapping[str, BackendStatus]) -> None:
        """What the backends say of themselves, from now on."""
        self._heard = {name: s for name, s in statuses.items() if name not in self._summed}
        for name in self._summed & statuses.keys():
            for gauge, figure in self._gauges:
                gauge.labels(name).set(figure.value(statuses[name]))

    def collect(self) -> Iterable[Metric]:
        for figure in _FIGURES:
            family = GaugeMetricFamily(figure.name, figure.text, labels=[LABEL])
            for name, status in self._heard.items():
                family.add_metric([name], figure.value(status))
            yield family
