"""Draws what `bench_backends` wrote: a bar for each engine, a panel for each figure.

python -m benchmarks.chart_backends .turnout/bench/backends.json docs/images/backends.svg
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

PANELS = (
    ("tokens_per_s", 1, "output tokens/s", "more is better"),
    ("ttft_p50_s", 1, "TTFT p50, s", "less is better"),
    ("itl_p99_s", 1000, "ITL p99, ms", "less is better"),
    ("high_p99_s", 1, "high class, p99 of requests, s", "less is better"),
)
WASTES = (
    ("empty_slots", 100, "KV slots in use that are empty, %", "less is better"),
    ("idle_rows", 100, "rows computed for nothing, %", "less is better"),
)
COLOURS = {"native": "#1b6e53", "native-8": "#7fb8a4", "priority": "#c98a2b", "static": "#a3483f"}


def main() -> None:
    """Read the results, write the chart."""
    source, target = map(Path, sys.argv[1:3])
    results = json.loads(source.read_text())
    mpl.rcParams.update({"svg.hashsalt": "backends", "font.size": 9})
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.4), layout="constrained")
    panels = iter(axes.flat)
    for name, scale, title, hint in PANELS:
        bars = {
            engine: [run[name] * scale for run in runs] for engine, runs in results["runs"].items()
        }
        _draw(next(panels), bars, title, hint)
    for name, scale, title, hint in WASTES:
        bars = {engine: [waste[name] * scale] for engine, waste in results["waste"].items()}
        _draw(next(panels), bars, title, hint)
    figure.suptitle(
        f"SmolLM2-135M on 2 CPU cores: {results['requests']} requests ({results['workload']}) from "
        f"{results['clients']} clients; bars are medians, dots are runs"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})


def _draw(axis: plt.Axes, bars: dict[str, list[float]], title: str, hint: str) -> None:
    for engine, values in bars.items():
        median = statistics.median(values)
        axis.bar(engine, median, color=COLOURS[engine])
        axis.text(engine, median, f"{median:.3g}", ha="center", va="bottom")
        axis.plot([engine] * len(values), values, "k.", markersize=3)
    axis.set_title(f"{title} ({hint})", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.15)


if __name__ == "__main__":
    main()
