"""Files that several processes may want to create at the same moment. Knows nothing of contents.

A file appears under its name whole or not at all: it is filled under a name of its own and then
linked into place, which the kernel lets only the first process do.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def create_once(path: Path, fill: Callable[[Path], None]) -> bool:
    """Make sure `path` exists: `fill` writes the file unless it is there already.

    The file is readable and writable by its owner alone (0600), its new directories too (0700).
    Blocks for as long as `fill` does.

    Returns:
        Whether this call made the file.

    Raises:
        OSError: the directory cannot be written to.
    """
    if path.exists():
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # `mkdtemp` makes a directory of mode 0700, so whatever `fill` leaves beside the file
    # (SQLite's journals) is private too, and goes with it.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as workshop:
        draft = Path(workshop) / path.name
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL, 0o600))
        fill(draft)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    return True
