"""TGI's metrics, under TGI's names, of backends that batch by its rule.

What the engine counts comes with its status and is shown as it is; what the gateway sees of a
request is counted when it ends. Each has the backend's name as a label, which TGI, having one, does
not need. TGI's counters have no `_total` behind their names, so they are exposed as gauges.
`docs/priority_batcher.md` says which are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.base import SECONDS_EDGES, SIZE_EDGES, BackendStatus, BatchStats, Distribution
from gateway.telemetry.record import RequestRecord

TGI_ENGINE = "priority_batcher"
"""As policies name it."""

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class TgiMetrics:
    """Of the backends of this kind, over the gateway's registry."""

    def __init__(self, registry: CollectorRegistry, backends: Collection[str]) -> None:
        self._backends = backends
        self.engines = Engines()  # a collector of its own, which whoever exposes it registers

        def count(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(
                name, text, ("backend", *labels), registry=registry, multiprocess_mode="sum"
            )

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(name, text, ("backend",), registry=registry, buckets=SECONDS)

        def tokens(name: str, text: str) -> Histogram:
            return Histogram(name, text, ("backend",), registry=registry, buckets=TOKENS)

        self._count = count("tgi_request_count", "Finished requests.")
        self._success = count("tgi_request_success", "Of these, answered.")
        self._failure = count("tgi_request_failure", "Of these, not answered, and why.", "err")
        self._duration = seconds("tgi_request_duration", "Of answered ones, all of it.")
        self._validation = seconds("tgi_request_validation_duration", "Until it was let in.")
        self._queue = seconds("tgi_request_queue_duration", "In the engine's queue.")
        self._inference = seconds("tgi_request_inference_duration", "From there to its end.")
        self._per_token = seconds(
            "tgi_request_mean_time_per_token_duration", "Of inference, by its tokens."
        )
        self._input = tokens("tgi_request_input_length", "Tokens of the prompts.")
        self._generated = tokens("tgi_request_generated_tokens", "Tokens of the answers.")

    def record(self, record: RequestRecord) -> None:
        """Count a request that ended on one of these backends; others pass by."""
        backend = record.backend
        if backend not in self._backends:
            return
        self._count.labels(backend).inc()
        if record.outcome != "complete":
            self._failure.labels(backend, _failure(record)).inc()
            return
        timings = record.timings
        self._success.labels(backend).inc()
        self._duration.labels(backend).observe(timings.total_s)
        self._validation.labels(backend).observe(timings.validation_s)
        self._queue.labels(backend).observe(timings.queue_s)
        self._inference.labels(backend).observe(timings.inference_s)
        self._per_token.labels(backend).observe(
            timings.inference_s / max(record.completion_tokens, 1)
        )
        self._input.labels(backend).observe(record.prompt_tokens)
        self._generated.labels(backend).observe(record.completion_tokens)

    def show(self, statuses: Mapping[str, BackendStatus]) -> None:
        """What the engines say of themselves, from now on."""
        self.engines.statuses = statuses


def _failure(record: RequestRecord) -> str:
    """Why a request was not answered, in TGI's words."""
    if record.outcome == "client_disconnect":
        return "dropped"
    if record.status in (429, 503):
        return "overloaded"
    return "validation" if 400 <= record.status < 500 else "generation"


Heard = tuple[str, BackendStatus, BatchStats]
"""A backend's name, and what it last said of itself and of its batches."""


class Engines(Collector):
    """Metrics that are counted elsewhere: each scrape shows the last that was heard."""

    def __init__(self) -> None:
        self.statuses: Mapping[str, BackendStatus] = {}

    def collect(self) -> Iterable[Metric]:
        heard = [
            (name, status, status.batches)
            for name, status in self.statuses.items()
            if status.batches is not None
        ]
        yield from _gauges(heard)
        yield from _batches(heard)
        yield from _passes(heard)


def _gauges(heard: list[Heard]) -> Iterable[Metric]:
    def gauge(name: str, text: str, value: Callable[[BackendStatus, BatchStats], int]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["backend"])
        for backend, status, batches in heard:
            family.add_metric([backend], value(status, batches))
        return family

    yield gauge("tgi_queue_size", "Requests in line.", lambda status, _: status.num_waiting)
    yield gauge("tgi_batch_current_size", "In the batch.", lambda status, _: status.num_running)
    yield gauge(
        "tgi_batch_current_max_tokens",
        "Tokens reserved for the batch.",
        lambda _, batches: batches.current_max_tokens,
    )
    yield gauge(
        "tgi_batch_max_total_tokens",
        "Tokens that may be reserved.",
        lambda _, batches: batches.max_total_tokens,
    )


def _batches(heard: list[Heard]) -> Iterable[Metric]:
    concats = GaugeMetricFamily(
        "tgi_batch_concat", "Batches that joined a running one.", labels=["backend", "reason"]
    )
    sizes = HistogramMetricFamily(
        "tgi_batch_next_size", "Requests of a batch that was put together.", labels=["backend"]
    )
    for backend, _, batches in heard:
        for reason, value in batches.concats:
            concats.add_metric([backend, reason], value)
        _add(sizes, [backend], batches.next_size, SIZE_EDGES)
    return concats, sizes


def _passes(heard: list[Heard]) -> Iterable[Metric]:
    labels = ["backend", "method"]
    begun = GaugeMetricFamily("tgi_batch_inference_count", "Passes.", labels=labels)
    succeeded = GaugeMetricFamily("tgi_batch_inference_success", "That succeeded.", labels=labels)
    failed = GaugeMetricFamily("tgi_batch_inference_failure", "That failed.", labels=labels)
    inference = HistogramMetricFamily(
        "tgi_batch_inference_duration", "Seconds of a pass.", labels=labels
    )
    forward = HistogramMetricFamily(
        "tgi_batch_forward_duration", "Of these, on the device.", labels=labels
    )
    for backend, _, batches in heard:
        for method, passes in batches.passes:
            place = [backend, method]
            begun.add_metric(place, passes.num_begun)
            succeeded.add_metric(place, passes.num_succeeded)
            failed.add_metric(place, passes.num_failed)
            _add(inference, place, passes.inference_s, SECONDS_EDGES)
            _add(forward, place, passes.forward_s, SECONDS_EDGES)
    return begun, succeeded, failed, inference, forward


def _add(
    family: HistogramMetricFamily,
    labels: list[str],
    distribution: Distribution,
    edges: tuple[float, ...],
) -> None:
    names = [*(str(float(edge)) for edge in edges), "+Inf"]
    buckets = list(zip(names, accumulate(distribution.counts), strict=True))
    family.add_metric(labels, buckets, distribution.total)
