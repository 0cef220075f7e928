"""Compiles the C sources beside it into one shared library, once per machine and source.

The library lies in a cache directory under a name that says all it was made of: sources, compiler,
flags and processor. It is written beside its final name and renamed, so several processes may build
at once and none loads half a file. Knows nothing of what the functions are.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.[ch]")))

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fopenmp",  # torch's own pool: its libgomp is loaded before, so the symbols are found there
    "-ffp-contract=off",  # what is fused is said in the source, or bits would depend on inlining
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)

_COMPILERS = ("gcc", "cc", "clang")
_COMPILE_TIMEOUT_S = 120.0  # it takes 2 s


class BuildError(RuntimeError):
    """There is no library, and the message says why and what would help."""


def cache_directory(environment: Mapping[str, str]) -> Path:
    """`TURNOUT_KERNEL_CACHE`, or `turnout` in the user's cache directory."""
    if chosen := environment.get("TURNOUT_KERNEL_CACHE"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout"


def find_compiler(environment: Mapping[str, str]) -> str:
    """`CC`, or the first of gcc, cc and clang on the path: gcc shares torch's pool of threads.

    Raises:
        BuildError: there is none.
    """
    candidates = (environment["CC"],) if environment.get("CC") else _COMPILERS
    for name in candidates:
        if found := shutil.which(name, path=environment.get("PATH")):
            return found
    raise BuildError(f"no C compiler ({', '.join(candidates)}) is on the path: install gcc")


def build(sources: Sequence[Path], *, compiler: str, directory: Path) -> Path:
    """The library made of `sources` (headers among them), compiled unless it is there already.

    Raises:
        BuildError: the compiler fails, or the directory cannot be written.
    """
    try:
        library = directory / f"kernels-{_fingerprint(sources, compiler)}.so"
        if not library.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)  # its owner runs what is in it
            with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as workplace:
                made = Path(workplace) / library.name
                units = [str(source) for source in sources if source.suffix == ".c"]
                _run([compiler, *FLAGS, *units, "-o", str(made)])
                made.replace(library)
    except OSError as error:
        raise BuildError(
            f"{error}: set TURNOUT_KERNEL_CACHE to a directory that can be written"
        ) from error
    return library


def _fingerprint(sources: Sequence[Path], compiler: str) -> str:
    digest = hashlib.sha256()
    made_of = [_run([compiler, "--version"]).encode(), " ".join(FLAGS).encode(), _processor()]
    for part in (*made_of, *(source.read_bytes() for source in sources)):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:24]


def _processor() -> bytes:
    """What `-march=native` goes by: one core's model and feature flags, where Linux tells them."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor().encode()
    first_core = cpuinfo.partition("\n\n")[0].splitlines()
    told = ("model", "cpu family", "vendor_id", "flags", "CPU", "Features")
    return "\n".join(line for line in first_core if line.startswith(told)).encode()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} did not end within {_COMPILE_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        complaint = next((line for line in output if "error" in line), "it says nothing")
        raise BuildError(
            f"{command[0]} failed with status {done.returncode} ({complaint:.300}): "
            "install a gcc or clang that knows this processor"
        )
    return done.stdout
