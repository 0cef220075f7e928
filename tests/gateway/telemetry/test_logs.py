"""Log lines: one a record, and never a key in them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from gateway.redaction import redact
from gateway.telemetry.logs import JsonFormatter, PlainFormatter, configure
from gateway.tenancy.keys import ADMIN_PREFIX, mint

KEY = mint(bytes(range(32)))
ADMIN_KEY = mint(bytes(range(32)), ADMIN_PREFIX)


def record_of(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("turnout", logging.INFO, "x.py", 1, message, arguments, None)
    record.__dict__.update(extra)
    return record


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        ADMIN_KEY,
        f"Bearer {KEY}",
        f"https://x/?key={KEY}&a=1",
        f"'{KEY}'",
        "Bearer sk-CANARY123456",
        "eyJhbGciOiJFUzI1NiJ9.CANARY_-CANARY.CANARY",
        "nothing eyJhbGciOiJFUzI1NiJ9..CANARY, it was",
        "\\neyJhbGciOiJFUzI1NiJ9.CANARY",
        "a_eyJCANARYCANARY",
        "https://x/?access_token=eyJhbGciOiJFUzI1NiJ9.CANARY.CANARY&a=1",
    ],
)
def test_a_key_is_cut_to_what_may_be_shown(text: str) -> None:
    """Q-KEY-IN-LOGS."""
    shown = redact(text)
    assert KEY not in shown
    assert ADMIN_KEY not in shown
    assert "CANARY" not in shown
    assert "…" in shown


def test_what_stands_around_a_token_stays() -> None:
    assert redact("at eyJhbGciOiJFUzI1NiJ9.e30.x-_x, then. And eyJ, too.") == (
        "at eyJ…, then. And eyJ, too."
    )


def test_text_without_a_key_stays_as_it_is() -> None:
    assert redact("the bearer of bad news, to_live or not") == (
        "the bearer of bad news, to_live or not"
    )


def test_a_key_in_an_exception_is_cut_too() -> None:
    try:
        raise ValueError(f"cannot open https://x/{KEY}")
    except ValueError:
        record = record_of("failed")
        record.exc_info = sys.exc_info()
    for formatter in (PlainFormatter(), JsonFormatter()):
        assert KEY not in formatter.format(record)


def test_json_lines_hold_the_fields_of_a_record() -> None:
    line = JsonFormatter().format(record_of("served %d", 3, fields={"tenant": "acme", "n": 1}))
    entry = json.loads(line)
    assert entry["message"] == "served 3"
    assert entry["tenant"] == "acme"
    assert entry["level"] == "info"
    assert "\n" not in line


def test_a_lone_surrogate_does_not_break_the_log() -> None:
    """I-SURROGATE."""
    assert "x" in JsonFormatter().format(record_of("x %s", "\ud800"))


def test_audit_lines_are_written_at_every_level_of_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure("error", as_json=False)
        logging.getLogger("turnout.audit").info("a change")
        logging.getLogger("turnout.other").info("a detail")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert [line.split()[1:] for line in capsys.readouterr().err.splitlines()] == [
        ["INFO", "turnout.audit:", "a", "change"]
    ]
