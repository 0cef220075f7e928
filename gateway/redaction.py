"""What may be shown of a text that may hold a key: for log lines, and for what a client is told.

Knows keys by their form alone, not whether they were ever issued.
"""

from __future__ import annotations

import re

KEY_PATTERN = re.compile(
    r"(to_(?:live|admin)_[0-9A-Za-z]{4})[0-9A-Za-z]+|\b(?<=[Bb]earer )[^\s\"',]{8,}"
)


def redact(text: str) -> str:
    """Cut every key in a text down to what may be shown of it."""
    return KEY_PATTERN.sub(lambda match: f"{match.group(1) or ''}…", text)
