from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from backends.base import SIZE_EDGES, BackendState, BackendStatus
from backends.priority_batcher.figures import Figures
from gateway.dialects.base import Timings
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import RequestRecord

ENGINE_METRICS = {
    "tgi_queue_size", "tgi_batch_current_size", "tgi_batch_current_max_tokens",
    "tgi_batch_max_total_tokens", "tgi_batch_concat", "tgi_batch_next_size",
    "tgi_batch_inference_count", "tgi_batch_inference_success", "tgi_batch_inference_failure",
    "tgi_batch_inference_duration", "tgi_batch_forward_duration",
}  # fmt: skip


def record(backend: str, *, outcome: str = "complete", status: int = 200) -> RequestRecord:
    return RequestRecord(
        endpoint="generate",
        backend=backend,
        tenant="acme",
        model="chat",
        status=status,
        outcome=outcome,
        timings=Timings(total_s=4.0, validation_s=0.5, queue_s=1.0, inference_s=2.5),
        first_token_s=1.6,
        prompt_tokens=7,
        completion_tokens=5,
        cached_tokens=0,
    )


def status_of(figures: Figures) -> BackendStatus:
    return BackendStatus(
        state=BackendState.READY,
        num_running=3,
        num_waiting=2,
        batches=figures.snapshot(current_max_tokens=60, max_total_tokens=256),
    )


def exposition(metrics: Metrics, statuses: dict[str, BackendStatus]) -> str:
    metrics.show(statuses, num_active=0, num_unwritten=0)
    return metrics.render().decode()


def samples(metrics: Metrics, statuses: dict[str, BackendStatus]) -> dict[str, float]:
    """Of TGI's metrics, by name and labels as they are written."""
    text = exposition(metrics, statuses)
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("tgi_")
        for one in family.samples
    }


def test_shows_what_an_engine_counts_under_tgi_s_names() -> None:
    figures = Figures()
    figures.admit(4, None)
    figures.admit(2, "backpressure")
    figures.begin("prefill")
    figures.end("prefill", forward_s=0.2, inference_s=0.3)
    figures.begin("decode")
    figures.fail("decode")

    found = samples(Metrics(tgi_backends={"tgi"}), {"tgi": status_of(figures)})

    here = "('backend', 'tgi')"
    assert found[f"tgi_queue_size[{here}]"] == 2
    assert found[f"tgi_batch_current_size[{here}]"] == 3
    assert found[f"tgi_batch_current_max_tokens[{here}]"] == 60
    assert found[f"tgi_batch_max_total_tokens[{here}]"] == 256
    assert found[f"tgi_batch_concat[{here}, ('reason', 'backpressure')]"] == 1
    assert found[f"tgi_batch_concat[{here}, ('reason', 'wait_exceeded')]"] == 0
    for kind, method, value in (
        ("count", "prefill", 1),
        ("success", "prefill", 1),
        ("failure", "prefill", 0),
        ("count", "decode", 1),
        ("failure", "decode", 1),
    ):
        name = f"tgi_batch_inference_{kind}[{here}, ('method', '{method}')]"
        assert found[name] == value
    below = f"[{here}, ('le', '0.25'), ('method', 'prefill')]"
    assert found[f"tgi_batch_forward_duration_bucket{below}"] == 1
    assert found[f"tgi_batch_inference_duration_bucket{below}"] == 0
    assert found[f"tgi_batch_inference_duration_sum[{here}, ('method', 'prefill')]"] == 0.3
    assert found[f"tgi_batch_next_size_bucket[{here}, ('le', '2.0')]"] == 1
    assert found[f"tgi_batch_next_size_count[{here}]"] == 2
    assert found[f"tgi_batch_next_size_sum[{here}]"] == 6
    assert found[f"tgi_batch_next_size_bucket[{here}, ('le', '{float(SIZE_EDGES[-1])}')]"] == 2


def test_an_engine_of_another_kind_has_none_of_them() -> None:
    """Nor does a gateway that has no other."""
    other = {"native": BackendStatus(state=BackendState.READY)}
    assert samples(Metrics(tgi_backends={"tgi"}), other) == {}
    assert "tgi_" not in exposition(Metrics(), other)


def test_names_every_metric_of_the_batch() -> None:
    text = exposition(Metrics(tgi_backends={"tgi"}), {"tgi": status_of(Figures())})
    names = {family.name for family in text_string_to_metric_families(text)}
    assert names >= ENGINE_METRICS


def test_counts_answered_requests_with_where_their_time_went() -> None:
    metrics = Metrics(tgi_backends={"tgi"})
    metrics.record(record("tgi"))
    metrics.record(record("native"))

    found = samples(metrics, {})

    here = "[('backend', 'tgi')]"
    assert found[f"tgi_request_count{here}"] == 1
    assert found[f"tgi_request_success{here}"] == 1
    for name, value in (
        ("duration", 4.0),
        ("validation_duration", 0.5),
        ("queue_duration", 1.0),
        ("inference_duration", 2.5),
        ("mean_time_per_token_duration", 0.5),
        ("input_length", 7),
        ("generated_tokens", 5),
    ):
        assert found[f"tgi_request_{name}_sum{here}"] == value
    assert not any("native" in name for name in found)


def test_says_why_a_request_was_not_answered_in_tgi_s_words() -> None:
    metrics = Metrics(tgi_backends={"tgi"})
    for outcome, status, failure in (
        ("client_disconnect", 200, "dropped"),
        ("rejected", 429, "overloaded"),
        ("error", 503, "overloaded"),
        ("rejected", 422, "validation"),
        ("error", 200, "generation"),
        ("error", 500, "generation"),
    ):
        before = samples(metrics, {})
        metrics.record(record("tgi", outcome=outcome, status=status))
        name = f"tgi_request_failure[('backend', 'tgi'), ('err', '{failure}')]"
        assert samples(metrics, {})[name] == before.get(name, 0.0) + 1
    found = samples(metrics, {})
    assert found["tgi_request_count[('backend', 'tgi')]"] == 6
    assert not any(name.startswith("tgi_request_success[") for name in found)
