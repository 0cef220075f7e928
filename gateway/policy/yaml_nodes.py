"""A YAML text as a tree that remembers where each value stands.

Scalars are typed by the YAML 1.2 core schema, so `off`, `no`, `12:30` and `10_000` are text. Keys
are always text. Anchors and aliases work; merge keys, tags, duplicate keys and a second document
are refused. Knows nothing of policies. Source: YAML 1.2.2, section 10.3 (core schema).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, ScalarEvent
from yaml.reader import ReaderError

from gateway.policy.problems import Problem, Span

# A policy of 1,000 routes has about 20,000 values; 50 levels are ten times what the language has.
MAX_NODES = 50_000
MAX_DEPTH = 50

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]
Path = tuple[str | int, ...]

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_DECIMAL = re.compile(r"[-+]?[0-9]{1,18}")  # longer ones stay text: no setting holds them
_OCTAL = re.compile(r"0o[0-7]{1,18}")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value and its place. `source` is the value as written, empty if it takes several lines."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    span: Span
    key_span: Span | None = None  # of the key in front of it, in a map
    source: str = ""

    def plain(self) -> Plain:
        """The same as plain Python values."""
        match self.value:
            case tuple():
                return [item.plain() for item in self.value]
            case Mapping():
                return {key: item.plain() for key, item in self.value.items()}
            case _:
                return self.value

    def get(self, step: str | int) -> Node | None:
        """The child under a key or index, if there is one."""
        if isinstance(step, str):
            return self.entries().get(step)
        in_list = isinstance(self.value, tuple) and 0 <= step < len(self.value)
        return self.items()[step] if in_list else None

    def at(self, path: Path) -> Node:
        """The node at `path`, or the deepest one on the way to it."""
        node = self
        for step in path:
            child = node.get(step)
            if child is None:
                return node
            node = child
        return node

    def entries(self) -> Mapping[str, Node]:
        """The children of a map; nothing for any other value."""
        return self.value if isinstance(self.value, Mapping) else {}

    def items(self) -> tuple[Node, ...]:
        """The children of a list; a value that is no list counts as a list of one."""
        return self.value if isinstance(self.value, tuple) else (self,)

    @property
    def text(self) -> str | None:
        return self.value if isinstance(self.value, str) else None


def read(text: str, file: str = "") -> tuple[Node | None, list[Problem]]:
    """The tree, and what is wrong with the YAML itself. Without a tree there is a problem.

    `file` is the name that places in it have, if it is not the policy's main file.
    """
    start = Span(line=1, column=1, file=file)
    try:
        refused = list(_refused_events(text, start))
        if refused:
            return None, refused
        root = _loader(text, file).get_single_node()
    except yaml.MarkedYAMLError as error:
        return None, [_syntax(error, start)]
    except ReaderError as error:
        span = replace(_span_of_index(text, error.position), file=file)
        return None, [Problem(code="syntax", message="not a character YAML allows", span=span)]
    if root is None:
        message = "the file is empty; a policy starts with its version"
        empty = Problem(code="syntax", message=message, span=start, write="version: 1")
        return None, [empty]
    reader = _Reader(text)
    return reader.convert(root), reader.problems


def core_scalar(text: str) -> Scalar:
    """A plain (unquoted) scalar by the YAML 1.2 core schema. Infinities and NaN stay text."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text


def _loader(text: str, file: str) -> yaml.SafeLoader:
    loader = yaml.SafeLoader(text)
    loader.name = file  # which every mark then has
    return loader


def _refused_events(text: str, start: Span) -> Iterator[Problem]:
    """Tags, wherever they stand, and nesting that would overflow the stack (it ends the search)."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        mark = event.start_mark
        span = replace(start, line=mark.line + 1, column=mark.column + 1) if mark else start
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            message = "a word that starts with '!' is a tag to YAML, and tags are not used here"
            yield Problem(code="syntax", message=message, span=span, hint="put it in quotes")
        if depth > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} deep"
            yield Problem(code="syntax", message=message, span=span)
            return


class _Reader:
    """Turns PyYAML's nodes into ours, collecting problems on the way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self._num_nodes = 0
        self._too_large = False
        self._open: set[int] = set()  # nodes being converted: an alias to one is a loop

    def convert(self, node: yaml.Node) -> Node:
        span = _span(node)
        self._num_nodes += 1
        if self._is_refused(node, span):
            return Node(value=None, span=span)
        if isinstance(node, yaml.ScalarNode):
            value = core_scalar(node.value) if node.style is None else str(node.value)
            return Node(value=value, span=span, source=self._source(node))
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                items = tuple(self.convert(item) for item in node.value)
                return Node(value=items, span=span, source=self._source(node))
            return Node(value=dict(self._entries(node)), span=span, source=self._source(node))
        finally:
            self._open.remove(id(node))

    def _entries(self, node: yaml.Node) -> Iterator[tuple[str, Node]]:
        first: dict[str, Span] = {}
        for key, value in node.value:
            span = _span(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problem("bad-value", "a key must be a word, not a list or a map", span)
            elif key.value == "<<" and key.style is None:
                self._refuse_merge(span, value)
            elif key.value in first:
                message = f"'{key.value}' is written twice in one map"
                self.problems.append(
                    Problem(code="duplicate-key", message=message, span=span, also=first[key.value])
                )
            else:
                first[key.value] = span
                yield key.value, replace(self.convert(value), key_span=span)

    def _refuse_merge(self, span: Span, value: yaml.Node) -> None:
        pairs: list[tuple[yaml.Node, yaml.Node]] = (
            value.value if isinstance(value, yaml.MappingNode) else []
        )
        written = [f"{self._source(key)}: {self._source(item)}" for key, item in pairs]
        message = "'<<' is not used here: a map says all that it holds"
        write = ", ".join(written) or "the keys themselves"
        self._problem("merge-key", message, span, write=write)

    def _is_refused(self, node: yaml.Node, span: Span) -> bool:
        """Aliases can make a small text endless, or far larger or deeper than it looks."""
        if id(node) in self._open:
            self._problem("bad-value", "this value contains itself through an alias", span)
            return True
        if self._num_nodes <= MAX_NODES and len(self._open) <= MAX_DEPTH:
            return False
        if not self._too_large:
            message = f"more than {MAX_NODES} values, or {MAX_DEPTH} levels, through aliases"
            self._problem("bad-value", message, span)
        self._too_large = True
        return True

    def _problem(self, code: str, message: str, span: Span, write: str = "") -> None:
        self.problems.append(Problem(code=code, message=message, span=span, write=write))

    def _source(self, node: yaml.Node) -> str:
        if node.start_mark.line != node.end_mark.line:
            return ""
        return self.text[node.start_mark.index : node.end_mark.index]


def _span(node: yaml.Node) -> Span:
    start, end = node.start_mark, node.end_mark
    width = end.column - start.column if start.line == end.line else 1
    return replace(_span_of_mark(start), width=max(1, width))


def _span_of_mark(mark: yaml.Mark) -> Span:
    return Span(line=mark.line + 1, column=mark.column + 1, file=mark.name)


def _span_of_index(text: str, index: int) -> Span:
    before = text[:index]
    return Span(line=before.count("\n") + 1, column=index - (before.rfind("\n") + 1) + 1)


def _syntax(error: yaml.MarkedYAMLError, start: Span) -> Problem:
    mark = error.problem_mark or error.context_mark
    span = replace(start, line=mark.line + 1, column=mark.column + 1) if mark else start
    context = f" {error.context}" if error.context else ""
    return Problem(code="syntax", message=f"not YAML{context}: {error.problem}", span=span)
