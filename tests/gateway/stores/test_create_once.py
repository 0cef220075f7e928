"""Files appear whole or not at all, and once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.stores.create_once import create_once


def test_of_several_makers_one_wins_and_the_others_find_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    contents = [f"written by {i}" * 1000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(lambda text: create_once(path, lambda draft: write(draft, text)), contents)
        )
    assert made.count(True) == 1
    assert path.read_text() == contents[made.index(True)]


def test_a_failing_maker_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        write(draft, "half of ")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        create_once(tmp_path / "file", fail)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_the_owners_alone_from_the_beginning(tmp_path: Path) -> None:
    modes = []

    def look(draft: Path) -> None:
        modes.append(stat.S_IMODE(draft.stat().st_mode))

    create_once(tmp_path / "file", look)
    modes.append(stat.S_IMODE((tmp_path / "file").stat().st_mode))
    assert modes == [0o600, 0o600]


def write(path: Path, text: str) -> None:
    path.write_text(text)
