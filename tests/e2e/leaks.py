"""Finding secrets where none may be: the forms they take, and what a running server leaves behind.

Knows bytes alone; which secrets there are, and where they must not be, its callers know.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

from gateway.tenancy.keys import PREFIX


def leaks(text: bytes, secrets: Mapping[str, bytes]) -> list[str]:
    """Which of the secrets a text holds, each with the form that was found."""
    return [
        f"{name}, {form}"
        for name, secret in secrets.items()
        for form, needle in forms(secret)
        if needle in text
    ]


def forms(secret: bytes) -> Iterator[tuple[str, bytes]]:
    """A secret as it is, and as it looks after what software does to bytes on their way."""
    yield "as it is", secret
    yield "without its prefix", secret.removeprefix(PREFIX.encode())
    yield "percent-encoded", quote(secret, safe="").encode()
    yield "as a form field", quote_plus(secret).encode()
    yield "in hex", secret.hex().encode()
    for part in (secret, secret.removeprefix(PREFIX.encode())):
        for offset in range(3):
            standard = _base64(part, offset)
            yield f"in base64 after {offset} bytes", standard
            yield f"in base64url after {offset} bytes", standard.translate(_TO_URL)


_TO_URL = bytes.maketrans(b"+/", b"-_")


def _base64(secret: bytes, offset: int) -> bytes:
    """What stands in the base64 of any text that holds the secret after 3 n + `offset` bytes."""
    encoded = base64.b64encode(bytes(offset) + secret)
    first = -(-offset * 8 // 6)  # the character that the byte before the secret has a part in
    return encoded[first : (offset + len(secret)) * 8 // 6]


@dataclass(slots=True)
class Collector:
    """Takes OpenTelemetry's exports over HTTP and keeps their bodies."""

    url: str
    bodies: list[bytes] = field(default_factory=list[bytes])


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port, until the block ends."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Collector(f"http://127.0.0.1:{server.server_port}", bodies)
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as others of its user see it."""

    command: bytes
    environment: bytes


def family(pid: int) -> list[Process]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = path.joinpath("stat").read_text()
            parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == one]
    return [
        Process(
            command=Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" "),
            environment=Path(f"/proc/{one}/environ").read_bytes(),
        )
        for one in found
    ]


def contents(directory: Path, *, but: tuple[str, ...] = ()) -> bytes:
    """Names and contents of all regular files below a directory, except those named."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return b"\n".join(
        str(path).encode() + b"\n" + path.read_bytes() for path in files if path.name not in but
    )
