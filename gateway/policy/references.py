"""Names in a policy: each one that is used must exist, and none may be given twice.

Works on the tree of positions, before and independently of the schema, so that a misspelt key in
one entry does not hide a misspelt name in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.policy.match import glob_matches
from gateway.policy.problems import Problem, Span, did_you_mean, nearest
from gateway.policy.yaml_nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """A place where an entry of `section` is named."""

    node: Node
    section: str
    key: str  # in front of it; empty in a list
    globs: bool


def reference_problems(root: Node) -> list[Problem]:
    """Names that lead nowhere, and names given or listed twice."""
    unknown = (_unknown(root, each) for each in _references(root))
    return [*filter(None, unknown), *_repeated_names(root), *_repeated_items(root)]


def _references(root: Node) -> Iterator[_Reference]:
    for plan in _entries(root, "plans").values():
        yield from _named(plan, "limits", "limits")
        yield from _named(plan, "models", "models", globs=_is_star(plan.get("models")))
    for backend in _entries(root, "backends").values():
        yield from _named(backend, "limits", "limits")
    for route in _routes(root):
        yield from _named(route, "limits", "limits")
        for node in _backends(route):
            own_key = "use" if node is route.get("use") else ""
            yield _Reference(node=node, section="backends", key=own_key, globs=False)
        for match in _matches(route):
            yield from _matched(match, "model", "models")
            yield from _matched(match, "plan", "plans")
    defaults = root.get("defaults")
    if defaults is not None:
        yield from _named(defaults, "model", "models")


def _named(entry: Node, key: str, section: str, *, globs: bool = False) -> Iterator[_Reference]:
    value = entry.get(key)
    for node in _texts(value):
        own_key = key if node is value else ""
        yield _Reference(node=node, section=section, key=own_key, globs=globs)


def _matched(match: Node, key: str, section: str) -> Iterator[_Reference]:
    """What a route asks of a fact: `x`, `[x, y]` or `{not: x}`."""
    value = match.get(key)
    negated = value.get("not") if value is not None else None
    for node in _texts(negated or value):
        own_key = key if node is value else ""
        yield _Reference(node=node, section=section, key=own_key, globs=True)


def _unknown(root: Node, reference: _Reference) -> Problem | None:
    name, section = reference.node.text or "", reference.section
    names = _entries(root, section)
    if name in names or (reference.globs and any(glob_matches(name, known) for known in names)):
        return None
    owner = _aliases(root).get(name) if section == "models" else None
    suggestion = owner or nearest(name, names)
    hint = did_you_mean(suggestion) or f"{section} has {', '.join(names) or 'nothing'}"
    return Problem(
        code="unknown-ref",
        message=f"'{name}' is not one of {section}",
        span=reference.node.span,
        hint=f"it is an alias of '{owner}'" if owner else hint,
        write=f"{reference.key}: {suggestion}" if suggestion and reference.key else suggestion,
    )


def _repeated_names(root: Node) -> Iterator[Problem]:
    """Routes of one name, and aliases that another model answers to already."""
    names = [name for route in _routes(root) for name in _texts(route.get("name"))]
    yield from _repeats(names, "a route")
    models = _entries(root, "models")
    aliases = [alias for model in models.values() for alias in _texts(model.get("aliases"))]
    taken = {name: node.key_span for name, node in models.items() if node.key_span}
    yield from _repeats(aliases, "a model or alias", taken)


def _repeated_items(root: Node) -> Iterator[Problem]:
    """Things listed twice where once is meant."""
    for plan in _entries(root, "plans").values():
        yield from _repeats(_texts(plan.get("limits")), "a limit of this plan")
        yield from _repeats(_texts(plan.get("models")), "a model of this plan")
    for backend in _entries(root, "backends").values():
        yield from _repeats(_texts(backend.get("limits")), "a limit of this backend")
    for route in _routes(root):
        yield from _repeats(_texts(route.get("limits")), "a limit of this route")
        message = "an attempt of this route, and each backend is tried once"
        yield from _repeats(_repeatable(route), message, code="fallback-cycle")


def _repeatable(route: Node) -> list[Node]:
    """Backends of which none may come twice. A fallback may name one of a split, which it then is
    for the requests that were drawn for another.
    """
    used, pool, split = route.get("use"), route.get("pool"), route.get("split")
    first = [] if split is not None else [*_texts(used), *_texts(pool)]
    return [*first, *_fallbacks(route)]


def _repeats(
    nodes: Sequence[Node],
    what: str,
    taken: Mapping[str, Span] | None = None,
    *,
    code: str = "duplicate-name",
) -> Iterator[Problem]:
    first = dict(taken or {})
    for node in nodes:
        name = node.text or ""
        if name in first:
            message = f"'{name}' is already {what}"
            yield Problem(code=code, message=message, span=node.span, also=first[name])
        else:
            first[name] = node.span


def _aliases(root: Node) -> Mapping[str, str]:
    return {
        alias.text or "": name
        for name, model in _entries(root, "models").items()
        for alias in _texts(model.get("aliases"))
    }


def _entries(root: Node, section: str) -> Mapping[str, Node]:
    node = root.get(section)
    return node.entries() if node is not None else {}


def _routes(root: Node) -> Sequence[Node]:
    node = root.get("routes")
    return node.items() if node is not None else ()


def _backends(route: Node) -> list[Node]:
    """Every place where a route names one; the keys of a split stand for themselves."""
    split = route.get("split")
    drawn = split.entries().items() if split is not None else ()
    return [
        *_texts(route.get("use")),
        *(replace(node, value=name, span=node.key_span or node.span) for name, node in drawn),
        *_texts(route.get("pool")),
        *_fallbacks(route),
    ]


def _fallbacks(route: Node) -> list[Node]:
    """The names, also of those that have a condition."""
    fallback = route.get("fallback")
    items = fallback.items() if fallback is not None else ()
    return [node for item in items for node in _texts(item.get("use") or item)]


def _matches(route: Node) -> list[Node]:
    """What the route matches, and the conditions of its fallbacks."""
    fallback = route.get("fallback")
    items = fallback.items() if fallback is not None else ()
    return [*filter(None, (route.get("match"), *(item.get("when") for item in items)))]


def _texts(node: Node | None) -> list[Node]:
    """The texts of a list, or a single text; values of other kinds are the schema's business."""
    return [item for item in node.items() if item.text is not None] if node is not None else []


def _is_star(node: Node | None) -> bool:
    return [item.text for item in _texts(node)] == ["*"]
