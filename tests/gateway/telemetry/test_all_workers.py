"""Metrics of several processes as one. With real processes: what counts in files is settled when
prometheus_client is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gateway.telemetry.all_workers import VARIABLE, forget

ROOT = Path(__file__).resolve().parents[3]

PROCESS = """
import os, sys
from pathlib import Path
from backends.base import BackendState, BackendStatus
from backends.priority_batcher.figures import Figures
from gateway.telemetry.metrics import Metrics, Others
from tests.gateway.telemetry.test_tgi_metrics import record

metrics = Metrics(
    tgi_backends={"tgi"},
    others=Others(files=Path(sys.argv[1]), own_backends=frozenset({"echo"})),
)
for _ in range(int(sys.argv[2])):
    metrics.record(record("tgi"))
batches = Figures().snapshot(current_max_tokens=60, max_total_tokens=256)
one = dict(state=BackendState.READY, num_running=2, generation_tokens_total=10)
metrics.show(
    {"echo": BackendStatus(**one), "tgi": BackendStatus(**one, batches=batches)},
    num_active=5,
    num_unwritten=1,
)
sys.stdout.write(f"{os.getpid()}\\n{metrics.render().decode()}")
"""


def run_process(files: Path, num_requests: int) -> tuple[int, dict[str, float], str]:
    """One gateway process's life: its pid, what it exposed at its end, by series, and as text."""
    result = subprocess.run(
        [sys.executable, "-c", PROCESS, str(files), str(num_requests)],
        cwd=ROOT,
        env={**os.environ, VARIABLE: str(files)},
        text=True,
        capture_output=True,
        check=True,
        timeout=60,
    )
    pid, _, text = result.stdout.partition("\n")
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return int(pid), {series: float(value) for series, _, value in lines}, text


def total(series: dict[str, float], name: str) -> float:
    """Over all labels."""
    found = [value for key, value in series.items() if key.partition("{")[0] == name]
    assert found, name
    return sum(found)


def test_counts_are_sums_and_what_all_hear_of_one_engine_is_not(tmp_path: Path) -> None:
    """Case O-MULTIPROC."""
    run_process(tmp_path, 3)
    _, series, text = run_process(tmp_path, 4)

    assert total(series, "turnout_requests_total") == 7
    assert total(series, "turnout_request_duration_seconds_count") == 7
    assert total(series, "tgi_request_count") == 7
    assert total(series, "tgi_request_generated_tokens_sum") == 7 * 5
    assert series["turnout_inflight_requests"] == 10
    assert series["turnout_usage_unwritten_records"] == 2
    # an engine beside the gateways is one; echoes live inside, one in each
    assert series['vllm:num_requests_running{model_name="tgi"}'] == 2
    assert series['vllm:num_requests_running{model_name="echo"}'] == 4
    assert series['vllm:generation_tokens_total{model_name="tgi"}'] == 10
    assert series['vllm:generation_tokens_total{model_name="echo"}'] == 20
    assert series['tgi_batch_current_size{backend="tgi"}'] == 2
    assert series['turnout_backend_state{backend="tgi"}'] == 0
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1


def test_of_a_process_that_ended_the_counts_stay_and_the_gauges_go(tmp_path: Path) -> None:
    """Case O-MULTIPROC: a killed process removes no file of its own."""
    pid, _, _ = run_process(tmp_path, 3)
    forget(tmp_path, pid)
    _, series, _ = run_process(tmp_path, 4)

    assert total(series, "turnout_requests_total") == 7
    assert total(series, "tgi_request_count") == 7
    assert series["turnout_inflight_requests"] == 5
    assert series['vllm:num_requests_running{model_name="echo"}'] == 2
    assert series['vllm:generation_tokens_total{model_name="echo"}'] == 20
