"""Logging: one line per record, plain or JSON, and no key ever in it.

Does not decide what is logged. The filter works on the finished text, so that a key inside an
exception's message or a URL is caught as well.
"""

from __future__ import annotations

import json
import logging
import sys

from gateway.redaction import redact


class PlainFormatter(logging.Formatter):
    """For a person at a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """For a machine: one JSON object a line; `extra={"fields": {...}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry |= fields
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(entry, default=str))


def configure(level: str, *, as_json: bool) -> None:
    """Send all logging to standard error. Called once per process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("aiosqlite", "asyncio", "httpx", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("turnout.audit").setLevel(logging.INFO)  # at every level of the others
