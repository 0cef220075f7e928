"""The three local engines on one workload: throughput, TTFT, ITL, latency by class, and waste.

One server, one model, one policy (`backends.yaml`): the engine is chosen by a header, so all that
differs is the engine. Runs are interleaved, there and back (A B C C B A), for the machine may be
shared; each goal is a ratio of two engines' medians. Prints a line `ratio NAME VALUE goal >= BOUND`
for each and exits with 1 if one is missed; writes everything to a JSON file, which
`benchmarks.chart_backends` draws.

    make bench-backends
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.backends_waste import waste_of
from benchmarks.backends_workload import LENGTHS, Job, jobs, requests
from gateway.bench import Report, percentile, run
from tests.e2e.running import MODEL_FILE, Server, serving

POLICY = Path(__file__).with_name("backends.yaml")
ENGINES = ("native", "native-8", "priority", "static")
CLASSES = ("high", "normal", "low")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One engine, one run. Times in seconds."""

    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float
    high_p99_s: float  # of whole requests of the high class

    @classmethod
    def of(cls, report: Report, workload: list[Job]) -> Figures:
        """Raises RuntimeError if a request failed: a benchmark of failures means nothing."""
        errors = {sample.error for sample in report.samples if sample.error}
        if errors:
            raise RuntimeError(f"requests failed: {', '.join(sorted(errors))}")
        ttfts_s = [sample.ttft_s for sample in report.samples]
        gaps_s = [gap for sample in report.samples for gap in sample.gaps_s]
        high_s = [
            sample.total_s
            for sample, job in zip(report.samples, workload, strict=True)
            if job.priority == "high"
        ]
        return cls(
            tokens_per_s=sum(s.completion_tokens for s in report.samples) / report.wall_s,
            ttft_p50_s=percentile(ttfts_s, 0.5),
            ttft_p99_s=percentile(ttfts_s, 0.99),
            itl_p50_s=percentile(gaps_s, 0.5),
            itl_p99_s=percentile(gaps_s, 0.99),
            high_p99_s=percentile(high_s, 0.99),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A ratio and its bound, if it has one."""

    name: str
    value: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def __str__(self) -> str:
        goal = ""
        if self.at_least is not None:
            goal = f" goal >= {self.at_least:g}"
        if self.at_most is not None:
            goal = f" goal <= {self.at_most:g}"
        return f"ratio {self.name} {self.value:.3f}{goal}"


def measure(server: Server, workload: list[Job], *, clients: int, rounds: int) -> Runs:
    """Every engine, so many times, there and back."""
    keys = {name: server.new_key(f"tenant-{name}", name) for name in CLASSES}
    order = [
        engine for index in range(rounds) for engine in ENGINES[:: 1 if index % 2 == 0 else -1]
    ]
    runs: Runs = defaultdict(list)
    for number, engine in enumerate(order):
        asked = requests(workload, engine=engine, keys=keys, run=number)
        report = asyncio.run(run(server.base_url, asked, concurrency=clients))
        figures = Figures.of(report, workload)
        runs[engine].append(figures)
        print(
            f"{engine:9} {figures.tokens_per_s:6.1f} tokens/s"
            f"   TTFT p50 {figures.ttft_p50_s:6.2f} p99 {figures.ttft_p99_s:6.2f} s"
            f"   ITL p50 {figures.itl_p50_s * 1000:5.0f} p99 {figures.itl_p99_s * 1000:5.0f} ms"
            f"   high class p99 {figures.high_p99_s:6.2f} s",
            flush=True,
        )
    return runs


Runs = dict[str, list[Figures]]


def goals(runs: Runs) -> Iterator[Goal]:
    """What the issue of engines is held to, and where the first of them comes from."""

    def median(engine: str, figure: str) -> float:
        return statistics.median(getattr(each, figure) for each in runs[engine])

    def ratio(one: str, other: str, figure: str) -> float:
        return median(one, figure) / median(other, figure)

    yield Goal(
        name="native_over_static_throughput",
        value=ratio("native", "static", "tokens_per_s"),
        at_least=2.5,
    )
    yield Goal(name="of_it_32_places_over_8", value=ratio("native", "native-8", "tokens_per_s"))
    yield Goal(
        name="of_it_continuous_over_static", value=ratio("native-8", "static", "tokens_per_s")
    )
    yield Goal(
        name="priority_over_static_throughput", value=ratio("priority", "static", "tokens_per_s")
    )
    yield Goal(name="native_over_priority_itl_p99", value=ratio("native", "priority", "itl_p99_s"))
    yield Goal(
        name="priority_over_static_high_class_p99",
        value=ratio("priority", "static", "high_p99_s"),
        at_most=0.65,
    )


def main() -> int:
    """Measure, print, write down; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=LENGTHS, default="chat")
    parser.add_argument("--requests", type=int, default=64, help="of one run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(".turnout/bench/backends.json"))
    arguments = parser.parse_args()
    workload = jobs(arguments.workload, arguments.requests)
    with serving(POLICY.read_text().replace("MODEL", str(MODEL_FILE))) as server:
        runs = measure(server, workload, clients=arguments.clients, rounds=arguments.rounds)
    wastes = {
        name: waste_of(name, workload, num_clients=arguments.clients)
        for name in ("native", "priority", "static")
    }
    for name, waste in wastes.items():
        print(
            f"{name:9} {waste.empty_slots:6.1%} of the KV slots in use are empty, "
            f"{waste.idle_rows:6.1%} of the rows computed are for nothing"
        )
    reached = list(goals(runs))
    print(*reached, sep="\n")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "runs": {engine: [asdict(each) for each in figures] for engine, figures in runs.items()},
        "waste": {name: asdict(waste) for name, waste in wastes.items()},
        "workload": arguments.workload,
        "requests": arguments.requests,
        "clients": arguments.clients,
    }
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(goal.is_met for goal in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
