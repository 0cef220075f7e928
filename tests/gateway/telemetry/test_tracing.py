"""Exporting is off unless the environment asks for it."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider

from gateway.telemetry.tracing import open_provider


def num_processors(provider: TracerProvider) -> int:
    return len(provider._active_span_processor._span_processors)


def test_exports_nothing_by_default() -> None:
    assert num_processors(open_provider({})) == 0


def test_prints_spans_when_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    provider = open_provider({"OTEL_TRACES_EXPORTER": "console"})
    provider.get_tracer("test").start_span("hello").end()
    provider.shutdown()
    assert "hello" in capsys.readouterr().err
