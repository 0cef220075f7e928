"""What may be shown of a text that may hold a key or a token: for log lines, and for what a client
is told.

Knows them by their form alone, not whether they were ever issued. Of a token even a beginning is
cut: what it says of a person stands there.
"""

from __future__ import annotations

import re

KEY_PATTERN = re.compile(
    r"(to_(?:live|admin)_[0-9A-Za-z]{4})[0-9A-Za-z]+"
    r"|(eyJ)[0-9A-Za-z_-]{8,}(?:\.[0-9A-Za-z_-]*)*"
    r"|\b(?<=[Bb]earer )[^\s\"',]{8,}"
)


def redact(text: str) -> str:
    """Cut every key and token in a text down to what may be shown of it."""
    return KEY_PATTERN.sub(lambda match: f"{match[1] or match[2] or ''}…", text)
