"""Durations of keys as operators write them: `90m`, `12h`, `30d`. Pure."""

from __future__ import annotations

import re

OVERLAP_S = 48 * 3600
"""How long a rotated key stays good unless it is said: a weekend for those who deploy by hand."""

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}


def lifetime_s(text: str) -> int:
    """The seconds of `90m`, `12h` or `30d`.

    Raises:
        ValueError: it is no such duration; the message says what to write.
    """
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write for example 90m, 12h or 30d")
    return int(match[1]) * _UNITS_S[match[2]]
