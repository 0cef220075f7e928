"""The metrics of several gateway processes as one: any of them shows what all have counted.

Each process counts in files of its own, as prometheus_client's multiprocess mode has it; a scrape
adds them up. The files of a process that has ended stay, so that no counter goes back, but for
those of `live` gauges: `forget` removes them. What is not counted here, but heard from an engine
that all of them share, must not be added up: collectors of that kind stand beside the files.

With one process there are no files. Source: prometheus_client's documentation, "Multiprocess Mode".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry, multiprocess
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client looks for it when it is imported: whoever starts a process must set it."""

PUBLISH_S = 0.5
"""How late a gauge of another process may be; as late as an engine's heartbeat. A round over ten
backends inside the gateway takes 0.25 ms, 0.05 % of a core."""

_untyped = cast(Any, multiprocess)
_mark_process_dead = cast(Callable[[int, str], None], _untyped.mark_process_dead)
_collector_of = cast(Callable[[None, str], Collector], _untyped.MultiProcessCollector)


def files_of(run_dir: Path) -> Path:
    """Where the files of one installation lie."""
    return run_dir / "metrics"


def forget(files: Path, pid: int) -> None:
    """A process has ended: what it had running is no more, what it counted stays."""
    _mark_process_dead(pid, str(files))


def over(files: Path, heard: Iterable[Collector]) -> CollectorRegistry:
    """What a scrape shows: the sums over all processes, and what this one has heard."""
    registry = CollectorRegistry()
    registry.register(_AllWorkers(files, tuple(heard)))
    return registry


class _AllWorkers(Collector):
    def __init__(self, files: Path, heard: tuple[Collector, ...]) -> None:
        self._files = _collector_of(None, str(files))
        self._heard = heard

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {one.name: one for one in self._files.collect()}
        for collector in self._heard:
            for family in collector.collect():
                if family.name in families:  # of backends of either kind, under one name
                    families[family.name].samples.extend(family.samples)
                else:
                    families[family.name] = family
        return families.values()
