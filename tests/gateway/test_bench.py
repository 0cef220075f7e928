"""The load generator's own arithmetic; `tests/e2e` runs it against a server."""

from __future__ import annotations

from gateway.bench import Load, Report, Sample


def test_prompts_have_the_length_asked_for_and_begin_differently() -> None:
    load = Load(model="m", prompt_chars=500)
    texts = [str(load.body(number)["messages"]) for number in range(3)]
    assert len({text[:40] for text in texts}) == 3
    messages = load.body(0)["messages"]
    assert isinstance(messages, list)
    assert len(messages[0]["content"]) == 500


def test_a_report_counts_good_answers_only_and_shows_every_error_once() -> None:
    good = Sample(ttft_s=0.1, gaps_s=(0.01, 0.03), completion_tokens=3, total_s=0.2)
    bad = Sample(ttft_s=9.0, gaps_s=(), completion_tokens=0, total_s=9.0, error="429")
    lines = list(Report(samples=(good, good, bad, bad), wall_s=2.0).lines())
    assert lines == [
        "requests       2 good, 2 failed",
        "  429",
        "output         3.0 tokens/s",
        "TTFT           p50 100.0 ms, p95 100.0 ms, p99 100.0 ms",
        "ITL            p50 30.0 ms, p95 30.0 ms, p99 30.0 ms",
    ]


def test_a_report_of_failures_has_no_figures() -> None:
    bad = Sample(ttft_s=9.0, gaps_s=(), completion_tokens=0, total_s=9.0, error="refused")
    assert list(Report(samples=(bad,), wall_s=1.0).lines()) == [
        "requests       0 good, 1 failed",
        "  refused",
    ]
