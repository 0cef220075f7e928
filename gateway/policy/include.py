"""`include: [tenants/*.yaml]`: maps of a policy that lie in files of their own.

What is included holds entries of some maps and nothing else, so that an operator reads the rules in
one file. Each entry keeps the place it is written at. Pure: somebody else reads the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from gateway.policy.problems import Problem, did_you_mean, nearest
from gateway.policy.yaml_nodes import Node, read

SECTIONS = ("backends", "models", "limits", "plans")


def with_included(
    root: Node, included: Callable[[str], Mapping[str, str]]
) -> tuple[Node, dict[str, str], list[Problem]]:
    """The tree with what it includes, the texts by file, and what is wrong with either."""
    include = root.get("include")
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for item in include.items() if include is not None else ():
        if item.text is None:
            continue  # which is the schema's business
        found = included(item.text)
        if not found:
            message = f"no file fits '{item.text}'"
            hint = "a path is seen from the folder of this file"
            problems.append(Problem(code="unknown-ref", message=message, span=item.span, hint=hint))
        texts |= found
    for name, text in texts.items():
        tree, wrong = read(text, name)
        problems += wrong
        if tree is not None:
            problems += _foreign(tree)
            root, twice = _merged(root, tree)
            problems += twice
    return root, texts, problems


def _foreign(tree: Node) -> Iterator[Problem]:
    """Keys that only the file that includes may have."""
    if not isinstance(tree.value, Mapping):
        message = f"an included file is a map of {', '.join(SECTIONS)}"
        yield Problem(code="bad-value", message=message, span=tree.span, write="plans:")
    for key, node in tree.entries().items():
        if key not in SECTIONS:
            suggestion = nearest(key, SECTIONS)
            yield Problem(
                code="unknown-key",
                message=f"'{key}' is not a key of an included file",
                span=node.key_span or node.span,
                hint=did_you_mean(suggestion) or f"the keys are {', '.join(SECTIONS)}",
                write=suggestion and f"{suggestion}:",
            )


def _merged(root: Node, tree: Node) -> tuple[Node, list[Problem]]:
    """`root` with the entries of `tree` behind its own; an entry that is there already stays."""
    sections = dict(root.entries())
    problems: list[Problem] = []
    for section in SECTIONS:
        added, owner = tree.get(section), sections.get(section)
        if added is None or (owner and not isinstance(owner.value, Mapping)):
            continue  # what is no map is the schema's business
        entries = dict(owner.entries()) if owner else {}
        for name, node in added.entries().items():
            first = entries.setdefault(name, node)
            if first is not node:
                problems.append(_twice(section, name, first, node))
        sections[section] = replace(owner or added, value=entries)
    return replace(root, value=sections), problems


def _twice(section: str, name: str, first: Node, second: Node) -> Problem:
    return Problem(
        code="duplicate-key",
        message=f"'{name}' is already one of {section}",
        span=second.key_span or second.span,
        also=first.key_span or first.span,
        hint="give one of them another name",
    )
