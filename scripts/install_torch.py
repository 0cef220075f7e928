"""Install the pinned torch into the running environment, without pulling CUDA unless asked.

Asks pip which wheel the configured package index would give. If it is a CPU build, or CUDA was
asked for (`TURNOUT_TORCH=cuda`) or there is an NVIDIA driver here, that wheel is installed.
Otherwise the CPU build is taken from PyTorch's own index. Standard library only: it runs before
anything else is there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

VERSION = "2.13.0"
CPU_INDEX = os.environ.get("TURNOUT_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")


def pip(*arguments: str, capture: bool = False) -> str:
    """Run this environment's pip; its output, if captured."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, check=True, text=True, capture_output=capture)
    return result.stdout if capture else ""


def index_gives_cuda() -> bool:
    """Whether the configured index's wheel would drag in NVIDIA's libraries."""
    report = pip(
        "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-",
        f"torch=={VERSION}", capture=True,
    )  # fmt: skip
    metadata = json.loads(report)["install"][0]["metadata"]
    return any(line.startswith(("nvidia-", "cuda-")) for line in metadata.get("requires_dist", []))


def main() -> None:
    """Install torch unless the pinned version is here."""
    try:
        if version("torch").split("+")[0] == VERSION:
            return
    except PackageNotFoundError:
        pass
    wants_cuda = os.environ.get("TURNOUT_TORCH") == "cuda" or shutil.which("nvidia-smi")
    source = [] if wants_cuda or not index_gives_cuda() else ["--index-url", CPU_INDEX]
    pip("install", "--quiet", "--progress-bar", "on", f"torch=={VERSION}", *source)


if __name__ == "__main__":
    main()
