"""Every Prometheus metric of the gateway, in one table, and what is recorded when.

Labels come from the store and the loaded policy only (tenants, models, backends); anything a client
makes up is `other`, so the number of series is bounded by construction. Engine gauges keep vLLM's
names, so that its dashboards and endpoint pickers work unchanged. Each gauge says what it is over
several gateway processes: `gateway/telemetry/all_workers.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backends.base import BackendState, BackendStatus
from gateway.telemetry import all_workers
from gateway.telemetry.engine_metrics import EngineMetrics
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.tgi_metrics import TgiMetrics

OTHER = "other"

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Edges for latencies: from 1 ms to ten minutes, so that neither end swallows what is measured."""

STATES = {BackendState.READY: 0, BackendState.STARTING: 2, BackendState.DOWN: 1}
"""`turnout_backend_state`: 0 ready, 1 down, 2 starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """That there are other gateway processes, and what they do not share with this one.

    `files` is where all of them count; `own_backends` are those that each has for itself.
    """

    files: Path
    own_backends: frozenset[str]


class Metrics:
    """The gateway's metrics. Created once by the composition root."""

    def __init__(self, *, tgi_backends: Collection[str] = (), others: Others | None = None) -> None:
        """tgi_backends: those that also have TGI's metrics. others: None if there are none."""
        self.registry = CollectorRegistry()
        self._engines = EngineMetrics(others.own_backends if others else ())
        self._tgi = TgiMetrics(self.registry, tgi_backends) if tgi_backends else None
        heard = [self._engines, *([self._tgi.engines] if self._tgi else [])]
        if others is None:
            for collector in heard:
                self.registry.register(collector)
            self._exposed = self.registry
        else:
            self._exposed = all_workers.over(others.files, heard)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=SECONDS)

        def gauge(mode: Literal["livesum", "livemax"], name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)

        self.requests = counter(
            "turnout_requests",
            "Finished requests.",
            "endpoint",
            "tenant",
            "model",
            "code",
            "outcome",
        )
        self.duration = histogram(
            "turnout_request_duration_seconds",
            "From arrival to the last byte.",
            "endpoint",
            "model",
        )
        self.first_token = histogram(
            "turnout_time_to_first_token_seconds", "From arrival to the first token.", "model"
        )
        self.tokens = counter(
            "turnout_tokens", "Tokens of finished requests.", "tenant", "model", "kind"
        )
        self.limit_rejections = counter(
            "turnout_limit_rejections", "Refused by a limit.", "tenant", "limit", "dimension"
        )
        self.limit_warnings = counter(
            "turnout_limit_warnings",
            "Days or months of which a share in `warn_at` is used.",
            "limit",
        )
        self.store_errors = counter("turnout_store_errors", "Steps that the limit store failed.")
        self.attempts = counter("turnout_attempts", "Attempts on backends.", "backend", "outcome")
        self.in_flight = gauge("livesum", "turnout_inflight_requests", "Requests being served.")
        self.usage_unwritten = gauge(
            "livesum",
            "turnout_usage_unwritten_records",
            "Usage records that are not in the database yet.",
        )
        self.policy_info = gauge("livemax", "turnout_policy_info", "The loaded policy.", "hash")
        self.backend_state = gauge(
            "livemax", "turnout_backend_state", "0 ready, 1 down, 2 starting.", "backend"
        )

    def record(self, record: RequestRecord) -> None:
        """Count one finished request."""
        self.requests.labels(
            record.endpoint, record.tenant, record.model, str(record.status), record.outcome
        ).inc()
        self.duration.labels(record.endpoint, record.model).observe(record.timings.total_s)
        if record.first_token_s is not None:
            self.first_token.labels(record.model).observe(record.first_token_s)
        for kind, count in (
            ("input", record.prompt_tokens),
            ("output", record.completion_tokens),
            ("cached", record.cached_tokens),
        ):
            self.tokens.labels(record.tenant, record.model, kind).inc(max(count, 0))
        if self._tgi is not None:
            self._tgi.record(record)

    def show(
        self, statuses: Mapping[str, BackendStatus], *, num_active: int, num_unwritten: int
    ) -> None:
        """Set the gauges to how things stand in this process right now."""
        self.in_flight.set(num_active)
        self.usage_unwritten.set(num_unwritten)
        for name, status in statuses.items():
            self.backend_state.labels(name).set(STATES[status.state])
        self._engines.show(statuses)
        if self._tgi is not None:
            self._tgi.show(statuses)

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self._exposed)
