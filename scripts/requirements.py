"""Print the requirements of a group of pyproject.toml: `native` (and the core), `dev`, `bench`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one group, torch apart."""
    document = tomllib.loads(Path("pyproject.toml").read_text())
    if sys.argv[1] == "native":
        lines = document["project"]["dependencies"]
        lines += document["project"]["optional-dependencies"]["native"]
    else:
        lines = document["dependency-groups"][sys.argv[1]]
    sys.stdout.write("".join(f"{line}\n" for line in lines if not line.startswith("torch=")))


if __name__ == "__main__":
    main()
