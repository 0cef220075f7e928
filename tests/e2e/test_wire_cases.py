"""Every wire case over a socket, with the real model: statuses and shapes to the letter."""

from __future__ import annotations

import json
from pathlib import Path

CASES = [
    json.loads(line)
    for line in Path(__file__)
    .parents[1]
    .joinpath("cases/wire_cases.jsonl")
    .read_text()
    .splitlines()
]
print(len(CASES))
