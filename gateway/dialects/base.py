"""What a dialect is: the two-way translation between one public wire format and our values.

A dialect does no I/O, reads no clock and draws no random number: ids, time and seed arrive in the
`Stamp`. It knows nothing of tenants, limits, policies or backends' insides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backends.types import Event, GenerationRequest
from gateway.errors import GatewayError


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a request gets on arrival besides its own bytes."""

    request_id: str  # unique, `[0-9a-z]+`; dialects prefix it (`chatcmpl-…`, `cmpl-…`)
    created_s: int  # Unix seconds
    seed: int  # 64 random bits, for a client that gave no seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time of a finished request went; for wire formats that report it."""

    total_s: float
    validation_s: float  # from arrival until it was handed to a backend
    queue_s: float
    inference_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"


class StreamEncoder(Protocol):
    """One streamed answer being written. Created per request, fed every event once, in order."""

    def feed(self, event: Event) -> bytes:
        """The bytes to send now; empty if there is nothing to say.

        The first call puts whatever opens the stream in front; `Finished` adds whatever closes it.
        """
        ...

    def fail(self, error: GatewayError) -> bytes:
        """The dialect's error event, after which the stream ends (without the closing of a good
        one).
        """
        ...


class Exchange(Protocol):
    """One parsed request with all that is needed to answer it in its own dialect. Frozen."""

    @property
    def request(self) -> GenerationRequest: ...

    @property
    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of a streamed answer beside content-type, cache-control and x-accel-buffering."""
        ...

    def stream(self, model: str) -> StreamEncoder:
        """An encoder for a streamed answer; `model` is the public name to report."""
        ...

    def collect(self, model: str, events: Sequence[Event], timings: Timings) -> Reply:
        """The whole answer from all events of a drained stream, `Finished` included."""
        ...


class Dialect(Protocol):
    """A public wire format."""

    @property
    def name(self) -> str: ...

    def parse(self, body: bytes, stamp: Stamp) -> Exchange:
        """Read one request.

        Raises:
            InvalidRequest: with `param` naming the field; nothing is dropped in silence.
        """
        ...

    def error(self, error: GatewayError) -> Reply:
        """An error before the first byte, in this dialect's status and shape, retry headers
        included.
        """
        ...
