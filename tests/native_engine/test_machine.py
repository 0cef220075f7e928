from __future__ import annotations

import os
from pathlib import Path

import pytest

from native_engine.machine import available_cores, available_memory_bytes


@pytest.mark.parametrize(
    ("quota", "most"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", 4096), ("", 4096)],
)
def test_cores_are_cut_down_to_the_quota(tmp_path: Path, quota: str, most: int) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert available_cores(tmp_path) == min(most, len(os.sched_getaffinity(0)))


def test_memory_is_the_lesser_of_what_the_system_and_the_group_have(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9000 kB\nMemAvailable:   5000 kB\n")
    assert available_memory_bytes(tmp_path, meminfo) == 5000 * 1024
    (tmp_path / "memory.max").write_text("4000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_memory_bytes(tmp_path, meminfo) == 3_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(tmp_path, meminfo) == 5000 * 1024


def test_memory_is_unknown_where_nothing_tells(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path, tmp_path / "meminfo") is None
