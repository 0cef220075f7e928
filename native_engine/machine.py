"""How many cores and how much memory this process may use: affinity, control group, /proc.

On systems without these files the answer is what Python says. Knows nothing of models.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Whole cores: those this process may run on, cut down to its CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        return max(1, min(cores or 1, int(quota) // int(period)))
    return cores or 1


def available_memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int | None:
    """What could still be allocated without swapping; None where nothing tells."""
    candidates = []
    for line in _text(meminfo).splitlines():
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            candidates.append(int(value.removesuffix("kB")) * 1024)
    limit, used = _text(cgroup / "memory.max"), _text(cgroup / "memory.current")
    if limit.isdecimal() and used.isdecimal():
        candidates.append(max(0, int(limit) - int(used)))
    return min(candidates, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
