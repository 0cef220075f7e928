"""Server-sent events as this gateway writes them: one `data:` line an event. Knows no dialect.

Source: the WHATWG HTML standard, section "Server-sent events". The space after the colon is
optional there; clients of Hugging Face's compare whole lines and need it.
"""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see a live connection. Only ever between two events."""


def frame(data: bytes) -> bytes:
    """One event; `data` is JSON, which has no line breaks of its own."""
    return b"data: " + data + b"\n\n"
