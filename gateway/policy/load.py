"""From a policy file to a compiled `Policy`, or to every problem it has at once.

`parse` is pure; `load` is the only part of this package that touches a file.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationError

from gateway.policy.checks import whole_policy_problems
from gateway.policy.model import (
    MIDNIGHT,
    BackendConfig,
    Limit,
    Match,
    Model,
    Plan,
    Policy,
    Route,
    Timeouts,
)
from gateway.policy.prices import Price
from gateway.policy.problems import PolicyError, Problem, Span
from gateway.policy.references import reference_problems
from gateway.policy.schema import (
    DefaultsEntry,
    LimitEntry,
    MatchEntry,
    PlanEntry,
    PolicyFile,
    PriceEntry,
    PromptTokens,
    RouteEntry,
    TimeoutEntry,
)
from gateway.policy.schema_errors import problems_of
from gateway.policy.yaml_nodes import Node, Path as NodePath, read

__all__ = ["DEFAULT_TIMEOUTS", "PRIORITIES", "PolicyError", "load", "parse"]

PRIORITIES = {"low": -1, "normal": 0, "high": 1}

# Where neither the route nor `defaults.timeout` says it. A CPU answers a full queue of short chats
# well within the first; the last keeps a forgotten request from living for ever.
DEFAULT_TIMEOUTS = Timeouts(first_token_s=60.0, between_tokens_s=30.0, total_s=600.0)


def load(path: Path) -> Policy:
    """Read and compile a policy file.

    Raises:
        PolicyError: the file is not there, or not a usable policy.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start} is {data[error.start]:#04x}"
        raise _unreadable(path, message) from error
    return parse(text, str(path))


def parse(text: str, file_name: str) -> Policy:
    """Compile the text of a policy; `file_name` is for messages only.

    Raises:
        PolicyError: with all problems found.
    """
    root, problems = read(text)
    if root is None:
        raise PolicyError(file_name, text, problems)
    problems += reference_problems(root)
    try:
        file = PolicyFile.model_validate(root.plain())
    except ValidationError as error:
        raise PolicyError(file_name, text, [*problems, *problems_of(error, root)]) from None
    if not file.defaults.model and len(file.models) > 1:
        problems.append(_no_default_model(file))
    priced = [name for name, entry in file.backends.items() if entry.price is not None]
    if priced and file.currency is None:
        problems.append(_no_currency(root, ("backends", priced[0], "price"), "a price"))
    costly = [name for name, entry in file.limits.items() if entry.cost is not None]
    if costly and file.currency is None:
        problems.append(_no_currency(root, ("limits", costly[0], "cost"), "an amount of money"))
    if problems:
        raise PolicyError(file_name, text, problems)
    policy = _compile(file, digest=hashlib.sha256(text.encode()).hexdigest()[:12])
    problems = whole_policy_problems(policy, root)
    if problems:
        raise PolicyError(file_name, text, problems)
    return policy


def _unreadable(path: Path, message: str) -> PolicyError:
    problem = Problem(code="unreadable", message=message, span=Span(line=1, column=1))
    return PolicyError(str(path), "", [problem])


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


def _compile(file: PolicyFile, digest: str) -> Policy:
    """Every reference in `file` is known to lead somewhere."""
    limits = {name: _limit(name, entry, file.defaults) for name, entry in file.limits.items()}
    timeouts = _timeouts(file.defaults.timeout, DEFAULT_TIMEOUTS)
    return Policy(
        digest=digest,
        backends={
            name: BackendConfig(
                name=name,
                engine=entry.engine,
                model=entry.model,
                options=dict(entry.__pydantic_extra__),
                price=_price(entry.price),
                limits=tuple(limits[limit] for limit in entry.limits),
            )
            for name, entry in file.backends.items()
        },
        models={
            name: Model(name=name, aliases=tuple(entry.aliases))
            for name, entry in file.models.items()
        },
        default_model=file.defaults.model or next(iter(file.models)),
        plans={name: _plan(name, entry, limits) for name, entry in file.plans.items()},
        routes=tuple(_route(entry, timeouts, limits) for entry in file.routes),
        header_names=frozenset(name for entry in file.routes for name in entry.match.header or ()),
        estimate_output_tokens=file.defaults.estimate_output,
        currency=file.currency or "",
    )


def _price(entry: PriceEntry | None) -> Price | None:
    if entry is None:
        return None
    cached = entry.input if entry.cached is None else entry.cached
    return Price(input=entry.input, cached=cached, output=entry.output)


def _limit(name: str, entry: LimitEntry, defaults: DefaultsEntry) -> Limit:
    return Limit(
        name=name,
        requests=entry.requests,
        input_tokens=entry.input_tokens,
        output_tokens=entry.output_tokens,
        tokens=entry.tokens,
        cost=entry.cost,
        concurrent=entry.concurrent,
        reset=entry.reset or MIDNIGHT,
        warn_at=entry.warn_at,
        per=entry.per or "",
        on_store_error=entry.on_store_error or defaults.on_store_error,
    )


def _plan(name: str, entry: PlanEntry, limits: dict[str, Limit]) -> Plan:
    return Plan(
        name=name,
        limits=tuple(limits[limit] for limit in entry.limits),
        models=tuple(entry.models),
        priority=PRIORITIES[entry.priority],
        weight=entry.weight,
    )


def _route(entry: RouteEntry, defaults: Timeouts, limits: dict[str, Limit]) -> Route:
    return Route(
        name=entry.name,
        match=_match(entry.match),
        use=entry.use,
        fallback=tuple(entry.fallback),
        timeouts=_timeouts(entry.timeout, defaults),
        limits=tuple(limits[limit] for limit in entry.limits),
    )


def _match(entry: MatchEntry) -> Match:
    low, high = _bounds(entry.prompt_tokens)
    return Match(
        models=tuple(entry.model or ()),
        tenants=tuple(entry.tenant or ()),
        plans=tuple(entry.plan or ()),
        endpoints=tuple(entry.endpoint or ()),
        stream=entry.stream,
        headers=tuple((name, tuple(values)) for name, values in (entry.header or {}).items()),
        min_prompt_tokens=low,
        max_prompt_tokens=high,
    )


def _bounds(entry: PromptTokens | None) -> tuple[int | None, int | None]:
    """Both inclusive."""
    if entry is None:
        return None, None
    if entry.between is not None:
        return entry.between
    low = None if entry.over is None else entry.over + 1
    high = None if entry.under is None else entry.under - 1
    return low, high


def _timeouts(entry: TimeoutEntry, defaults: Timeouts) -> Timeouts:
    return Timeouts(
        first_token_s=entry.first_token or defaults.first_token_s,
        between_tokens_s=entry.between_tokens or defaults.between_tokens_s,
        total_s=entry.total or defaults.total_s,
    )
