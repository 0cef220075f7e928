"""From policy files to a compiled `Policy`, or to every problem they have at once.

`parse` is pure; `load` is the only part of this package that touches a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.policy.checks import whole_policy_problems
from gateway.policy.compile import compiled
from gateway.policy.include import with_included
from gateway.policy.model import Policy
from gateway.policy.problems import PolicyError, Problem, Span
from gateway.policy.references import reference_problems
from gateway.policy.schema import PolicyFile
from gateway.policy.schema_errors import problems_of
from gateway.policy.yaml_nodes import Node, Path as NodePath, read

__all__ = ["PolicyError", "load", "parse"]

Texts = Mapping[str, str]
"""By the name of a file, what it holds."""


def load(path: Path) -> Policy:
    """Read and compile a policy file, and those that it includes.

    Raises:
        PolicyError: a file is not there, or they are not a usable policy.
    """

    def included(pattern: str) -> Texts:
        found = sorted(each for each in path.parent.glob(pattern) if each.is_file())
        return {str(each): _text_of(each) for each in found}

    return parse(_text_of(path), str(path), included)


def parse(
    text: str, file_name: str, included: Callable[[str], Texts] = lambda pattern: {}
) -> Policy:
    """Compile the text of a policy; `file_name` is for messages only.

    `included` finds the texts that an entry of `include:` means.

    Raises:
        PolicyError: with all problems found.
    """
    root, problems = read(text)
    if root is None:
        raise PolicyError(file_name, text, problems)
    root, others, more = with_included(root, included)
    problems += [*more, *reference_problems(root)]
    try:
        file = PolicyFile.model_validate(root.plain())
    except ValidationError as error:
        problems += problems_of(error, root)
        raise PolicyError(file_name, text, problems, others) from None
    problems += _gaps(file, root)
    if problems:
        raise PolicyError(file_name, text, problems, others)
    policy = compiled(file, _digest((text, *others.values())))
    problems = whole_policy_problems(policy, root)
    if problems:
        raise PolicyError(file_name, text, problems, others)
    return policy


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start} is {data[error.start]:#04x}"
        raise _unreadable(path, message) from error


def _digest(texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _unreadable(path: Path, message: str) -> PolicyError:
    problem = Problem(code="unreadable", message=message, span=Span(line=1, column=1))
    return PolicyError(str(path), "", [problem])


def _gaps(file: PolicyFile, root: Node) -> list[Problem]:
    """What one part of the file makes necessary in another."""
    problems: list[Problem] = []
    if not file.defaults.model and len(file.models) > 1:
        problems.append(_no_default_model(file))
    priced = [name for name, entry in file.backends.items() if entry.price is not None]
    if priced and file.currency is None:
        problems.append(_no_currency(root, ("backends", priced[0], "price"), "a price"))
    costly = [name for name, entry in file.limits.items() if entry.cost is not None]
    if costly and file.currency is None:
        problems.append(_no_currency(root, ("limits", costly[0], "cost"), "an amount of money"))
    return problems


def _no_default_model(file: PolicyFile) -> Problem:
    return Problem(
        code="missing-key",
        message="there are several models, and none is said to be the default",
        span=Span(line=1, column=1),
        write=f"defaults: {{model: {next(iter(file.models))}}}",
    )


def _no_currency(root: Node, path: NodePath, what: str) -> Problem:
    node = root.at(path)
    return Problem(
        code="missing-key",
        message=f"{str(path[0])[:-1]} '{path[1]}' has {what}, and the policy no currency",
        span=node.key_span or node.span,
        write="currency: USD",
    )
