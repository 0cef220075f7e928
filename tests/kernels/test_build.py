"""The cache of compiled kernels, with the real compiler and with ones that cannot compile."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCES, BuildError, build, cache_directory, find_compiler
from kernels.cpu.library import library, load

PROGRAM = (
    "import os, sys, torch\n"
    "from kernels.cpu.library import load\n"
    "loaded = load(os.environ)\n"
    "sys.exit(loaded is None or loaded.turnout_panel_width() < 1)\n"
)


def write_source(folder: Path, value: int) -> Path:
    source = folder / "one.c"
    source.write_text(f"int one(void) {{ return {value}; }}\n")
    return source


def script(folder: Path, body: str) -> str:
    """A compiler that only does what `body` says, and says its version."""
    path = folder / "cc"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\n{body}\n')
    path.chmod(0o755)
    return str(path)


def test_the_c_kernels_were_built_so_the_tests_of_this_folder_do_run_them() -> None:
    """Without a C compiler this fails, as do all tests of the implementation `c`: install gcc."""
    assert library() is not None


def test_a_second_build_finds_the_first_one(tmp_path: Path) -> None:
    compiler, source = find_compiler(os.environ), write_source(tmp_path, 1)
    first = build([source], compiler=compiler, directory=tmp_path / "cache")
    made_at = first.stat().st_mtime_ns
    assert build([source], compiler=compiler, directory=tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == made_at
    assert [*first.parent.iterdir()] == [first]


def test_a_changed_source_is_built_anew(tmp_path: Path) -> None:
    compiler = find_compiler(os.environ)
    first = build([write_source(tmp_path, 1)], compiler=compiler, directory=tmp_path)
    second = build([write_source(tmp_path, 2)], compiler=compiler, directory=tmp_path)
    assert first != second
    assert first.exists()
    assert second.exists()


def test_several_processes_build_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "TURNOUT_KERNEL_CACHE": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) for _ in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    (library_path,) = tmp_path.iterdir()
    assert library_path.suffix == ".so"


def test_a_failing_compiler_is_logged_once_and_torch_does_the_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = script(tmp_path, "echo 'x.c:1: error: no such thing' >&2; exit 3")
    with caplog.at_level(logging.WARNING):
        assert load({"CC": compiler, "TURNOUT_KERNEL_CACHE": str(tmp_path / "cache")}) is None
    (record,) = caplog.records
    assert (
        "computes with torch's operators, at a half to a third of the speed" in record.getMessage()
    )
    assert "status 3 (x.c:1: error: no such thing): install a gcc" in record.getMessage()
    assert [*(tmp_path / "cache").iterdir()] == []


def test_a_machine_without_a_compiler_is_told_what_to_install(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load({"PATH": str(tmp_path), "HOME": str(tmp_path)}) is None
    (record,) = caplog.records
    assert "no C compiler (gcc, cc, clang) is on the path: install gcc" in record.getMessage()


def test_a_cache_that_cannot_be_written_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="set TURNOUT_KERNEL_CACHE to a directory"):
        build(SOURCES, compiler=find_compiler(os.environ), directory=tmp_path / "file")


def test_an_engine_without_the_library_computes_with_torch(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from kernels.dispatch import chosen_implementations\n"
        "from kernels.rms_norm import rms_norm\n"
        "rms_norm(torch.ones(2, 4), torch.ones(4), 1e-5)\n"
        "(chosen,) = chosen_implementations()['rms_norm'].values()\n"
        "assert (chosen.implementation, chosen.why) == ('torch', 'c could not be built')\n"
    )
    environment = {**os.environ, "CC": "/nowhere/cc", "TURNOUT_KERNEL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("no C compiler") == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TURNOUT_KERNEL_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/turnout")),
        ({}, Path.home() / ".cache" / "turnout"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    environment: dict[str, str], expected: Path
) -> None:
    assert cache_directory(environment) == expected
