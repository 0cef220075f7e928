"""Reads `wire_cases.jsonl`: one request to a public wire format a line, and what must come back.

A case says who decides its outcome: the `dialect` alone, a `backend` behind it, or the `server`
around it. `checks` are triples of a path into the answer, an operation and a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("wire_cases.jsonl")
_MISSING = object()
_TYPES: dict[str, type] = {"string": str, "integer": int, "array": list, "object": dict}

Check = tuple[str, str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WireCase:
    """One line. `needs` names a set-up without which the case says nothing ("keys", "no keys")."""

    id: str
    surface: str
    decided_by: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    needs: str
    statuses: tuple[int, ...]
    checks: tuple[Check, ...]


def load_wire_cases(model: str) -> list[WireCase]:
    """Every case, with `model` in place of `$MODEL`."""
    lines = _FILE.read_text().replace("$MODEL", model).splitlines()
    return [_case(json.loads(line)) for line in lines]


def _case(line: dict[str, Any]) -> WireCase:
    request, expect = line["request"], line["expect"]
    return WireCase(
        id=line["id"],
        surface=line["surface"],
        decided_by=line["decided_by"],
        method=request["method"],
        path=request["path"],
        headers=request["headers"],
        body=_body(request),
        needs=request.get("needs", ""),
        statuses=tuple(expect["status"]),
        checks=tuple((path, operation, value) for path, operation, value in expect["checks"]),
    )


def _body(request: dict[str, Any]) -> bytes:
    if "json" in request:
        return json.dumps(request["json"]).encode()
    if "raw_hex" in request:
        return bytes.fromhex(request["raw_hex"])
    raw: str = request.get("raw", "")
    if raw.startswith("$REPEAT("):
        text, times = raw[len("$REPEAT(") : -1].split(",")
        return text.encode() * int(times)
    return raw.encode()


def stream_document(stream: bytes) -> dict[str, Any]:
    """A stream of server-sent events as something `failed_checks` can look into."""
    payloads = [
        line.removeprefix("data: ")
        for line in stream.decode().splitlines()
        if line.startswith("data: ")
    ]
    events = [json.loads(payload) for payload in payloads if payload != "[DONE]"]
    per_event = [event.get("choices", []) for event in events]
    choices = [choice for one in per_event for choice in one]
    return {
        "events": events,
        "done": payloads[-1:] == ["[DONE]"],
        "num_choices_per_event": max(map(len, per_event), default=0),
        "role_events": sorted(c["index"] for c in choices if "role" in c.get("delta", {})),
        "finish_events": sorted(c["index"] for c in choices if c.get("finish_reason")),
    }


def failed_checks(case: WireCase, headers: Mapping[str, str], document: Any) -> list[Check]:
    """The checks that do not hold; `headers` by lower-case name."""
    return [check for check in case.checks if not _holds(check, headers, document)]


def _holds(check: Check, headers: Mapping[str, str], document: Any) -> bool:
    path, operation, value = check
    if path.startswith("header:"):
        found: Any = headers.get(path.removeprefix("header:"), _MISSING)
    else:
        found = _find(document, path)
    if found is _MISSING:
        return False
    match operation:
        case "eq":
            return bool(found == value)
        case "in":
            return found in value
        case "has" | "contains":
            return value in found
        case "lacks":
            return value not in found
        case "startswith":
            return bool(found.startswith(value))
        case "type":
            return isinstance(found, _TYPES[value])
        case _:
            return _holds_amount(operation, found, value)


def _holds_amount(operation: str, found: Any, value: Any) -> bool:
    match operation:
        case "ge":
            return bool(found >= value)
        case "le":
            return bool(found <= value)
        case "len":
            return bool(len(found) == value)
        case "minlen":
            return bool(len(found) >= value)
        case "keys":
            return sorted(found) == sorted(value)
        case _:
            raise ValueError(f"unknown operation {operation!r}")


def _find(document: Any, path: str) -> Any:
    node = document
    for step in path.split(".") if path else ():
        if isinstance(node, list):
            position = int(step)
            if not -len(node) <= position < len(node):
                return _MISSING
            node = node[position]
        else:
            node = node.get(step, _MISSING) if isinstance(node, dict) else _MISSING
        if node is _MISSING:
            return _MISSING
    return node
