"""Spans: one SERVER span per request, one child per attempt on a backend; names in one table.

Spans are started and ended by hand, never as context managers: an async generator that is left
early would run the exit in another context. Exporting is off unless the environment asks for it
with OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, or
`OTEL_TRACES_EXPORTER=console`).
Source: OpenTelemetry HTTP conventions; GenAI conventions v0.1.0 (2026), spelled out here because
their constants moved.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SimpleSpanProcessor,
)
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SERVICE = "turnout"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
DECISION = "turnout.decision"
OUTCOME = "turnout.outcome"
CLIENT_DISCONNECT = "client_disconnect"

_PROPAGATOR = TraceContextTextMapPropagator()


def open_provider(environment: Mapping[str, str]) -> TracerProvider:
    """A provider with the exporter that the environment names, or with none."""
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    if environment.get("OTEL_TRACES_EXPORTER") == "console":
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
    elif any(
        environment.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        # an optional extra: only a process that exports needs it
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Tracing:
    """Starts the gateway's spans. One per process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)

    def server_span(self, method: str, route: str, headers: Mapping[str, str]) -> Span:
        """The span of one HTTP request.

        A well-formed `traceparent` makes it part of the client's trace.
        """
        parent = _PROPAGATOR.extract(headers)
        return self._tracer.start_span(
            f"{method} {route}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={HTTP_METHOD: method, HTTP_ROUTE: route},
        )

    def attempt_span(self, parent: Span, operation: str, backend: str, model: str) -> Span:
        """The span of one attempt on one backend."""
        return self._tracer.start_span(
            f"{operation} {model}",
            context=trace.set_span_in_context(parent),
            kind=SpanKind.CLIENT,
            attributes={OPERATION: operation, PROVIDER: backend, REQUEST_MODEL: model},
        )

    def close(self) -> None:
        """Flush what is still queued. Blocks; called once at the end."""
        self._provider.shutdown()


def fail(span: Span, error_type: str, *, ours: bool) -> None:
    """Note how a request failed; only failures of ours make the span's status an error."""
    span.set_attribute(ERROR_TYPE, error_type)
    if ours:
        span.set_status(Status(StatusCode.ERROR, error_type))
