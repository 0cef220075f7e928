"""Every Prometheus metric of the gateway, in one table, and what is recorded when.

Labels come from the store and the loaded policy only (tenants, models, backends); anything a client
makes up is `other`, so the number of series is bounded by construction. Engine gauges keep vLLM's
names, so that its dashboards and endpoint pickers work unchanged. Counts this process only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backends.base import BackendState, BackendStatus
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.tgi_metrics import TgiMetrics

OTHER = "other"

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Edges for latencies: from 1 ms to ten minutes, so that neither end swallows what is measured."""

STATES = {BackendState.READY: 0, BackendState.STARTING: 2, BackendState.DOWN: 1}
"""`turnout_backend_state`: 0 ready, 1 down, 2 starting."""


class Metrics:
    """The gateway's metrics over one registry. Created once by the composition root."""

    def __init__(self, *, tgi_backends: Collection[str] = ()) -> None:
        """tgi_backends: those that also have TGI's metrics."""
        self.registry = CollectorRegistry()
        self._tgi = TgiMetrics(self.registry, tgi_backends) if tgi_backends else None

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=SECONDS)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

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
        self.in_flight = gauge("turnout_inflight_requests", "Requests being served.")
        self.usage_unwritten = gauge(
            "turnout_usage_unwritten_records", "Usage records that are not in the database yet."
        )
        self.policy_info = gauge("turnout_policy_info", "The loaded policy.", "hash")
        self.backend_state = gauge(
            "turnout_backend_state", "0 ready, 1 down, 2 starting.", "backend"
        )
        self.running = gauge("vllm:num_requests_running", "Running in the engine.", "model_name")
        self.waiting = gauge("vllm:num_requests_waiting", "Queued in the engine.", "model_name")
        self.kv_usage = gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1.", "model_name")
        self.engine_prompt_tokens = gauge(
            "vllm:prompt_tokens_total", "Prompt tokens computed or found cached.", "model_name"
        )
        self.engine_generation_tokens = gauge(
            "vllm:generation_tokens_total", "Tokens generated.", "model_name"
        )
        self.prefix_queries = gauge(
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked for in the cache.",
            "model_name",
        )
        self.prefix_hits = gauge(
            "vllm:prefix_cache_hits_total", "Prompt tokens found cached.", "model_name"
        )
        self.draft_tokens = gauge(
            "vllm:spec_decode_num_draft_tokens_total", "Tokens guessed ahead.", "model_name"
        )
        self.accepted_tokens = gauge(
            "vllm:spec_decode_num_accepted_tokens_total", "Of these, found right.", "model_name"
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

    def render(self, statuses: Mapping[str, BackendStatus], num_active: int) -> bytes:
        """The text exposition, with the gauges as things stand right now."""
        self.in_flight.set(num_active)
        if self._tgi is not None:
            self._tgi.show(statuses)
        for name, status in statuses.items():
            self.backend_state.labels(name).set(STATES[status.state])
            self.running.labels(name).set(status.num_running)
            self.waiting.labels(name).set(status.num_waiting)
            used = status.kv_blocks_total - status.kv_blocks_free
            self.kv_usage.labels(name).set(used / max(status.kv_blocks_total, 1))
            self.engine_prompt_tokens.labels(name).set(status.prompt_tokens_total)
            self.engine_generation_tokens.labels(name).set(status.generation_tokens_total)
            self.prefix_queries.labels(name).set(status.prefix_cache_queries)
            self.prefix_hits.labels(name).set(status.prefix_cache_hits)
            self.draft_tokens.labels(name).set(status.num_draft_tokens)
            self.accepted_tokens.labels(name).set(status.num_accepted_tokens)
        return generate_latest(self.registry)
