"""Where a request goes: one pure function over the policy, the request's facts and who is up.

No I/O, no clock, no randomness, and no exception whatever the facts are: a refusal is a decision
too. Serving, explaining and testing a policy all call `decide`. Knows nothing of HTTP or tenants'
counters. The messages of a refusal are for the operator; what a client may be told of a model
that is not its own is the caller's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from backends.base import BackendState
from gateway.policy.model import (
    Decision,
    Facts,
    Health,
    LimitUse,
    Match,
    Plan,
    Policy,
    Reject,
    RejectReason,
    Route,
)

# What clients send when they have no model to name: nothing, TGI's and huggingface_hub's
# stand-ins, or the address of the server itself.
_PLACEHOLDERS = ("", "tgi", "dummy")
_ADDRESSES = ("http://", "https://")


def decide(policy: Policy, facts: Facts, health: Health) -> Decision:
    """Resolve the model, check the plan, and take the first route that matches.

    A backend that `health` does not mention counts as down.
    """
    model = resolve_model(policy, facts.model)
    if model is None:
        message = (
            f"no model or alias is named '{facts.model}'; the models are {', '.join(policy.models)}"
        )
        return _refuse(policy, RejectReason.UNKNOWN_MODEL, message)
    plan = policy.plans.get(facts.plan)
    if plan is None:
        message = f"no plan is named '{facts.plan}'; the plans are {', '.join(policy.plans)}"
        return _refuse(policy, RejectReason.UNKNOWN_PLAN, message, model=model)
    if not _allows(plan, model):
        message = f"plan '{plan.name}' does not allow model '{model}'; add it to the plan's models"
        return _refuse(policy, RejectReason.MODEL_NOT_ALLOWED, message, model=model)
    if not _lists(facts.key_models, model):
        message = f"the key does not allow model '{model}'; it allows {', '.join(facts.key_models)}"
        return _refuse(policy, RejectReason.MODEL_NOT_ALLOWED, message, model=model)
    return _route(policy, plan, model, facts, health)


def reachable_backends(policy: Policy, facts: Facts) -> tuple[str, ...]:
    """Every backend that the request could reach with a prompt of some length, in routes' order.

    None if the tenant or the key may not use the model. Asked before the prompt is counted, for a
    tokenizer.
    """
    model = resolve_model(policy, facts.model)
    plan = policy.plans.get(facts.plan)
    if model is None or plan is None or not _allows(plan, model):
        return ()
    if not _lists(facts.key_models, model):
        return ()
    names = (
        name
        for route in policy.routes
        if set(_failing_keys(route.match, facts, model)) <= {"prompt_tokens"}
        for name in (route.use, *route.fallback)
    )
    return tuple(dict.fromkeys(names))


def resolve_model(policy: Policy, name: str) -> str | None:
    """The public name behind what a client wrote; None if there is none.

    Names are compared as they are: a difference in case or a space makes another name.
    """
    if name in policy.models:
        return name
    for model in policy.models.values():
        if name in model.aliases:
            return model.name
    if name in _PLACEHOLDERS or name.startswith(_ADDRESSES):
        return policy.default_model
    return None


def allowed_models(
    policy: Policy, plan_name: str, key_models: Sequence[str] = ("*",)
) -> tuple[str, ...]:
    """The public names that a plan and a key may use, in the policy's order."""
    plan = policy.plans.get(plan_name)
    if plan is None:
        return ()
    return tuple(name for name in policy.models if _allows(plan, name) and _lists(key_models, name))


def glob_matches(pattern: str, text: str) -> bool:
    """Whether all of `text` fits `pattern`, in which `*` stands for any run of characters."""
    if "*" not in pattern:
        return pattern == text
    fixed = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(fixed), text, re.DOTALL) is not None


def _route(policy: Policy, plan: Plan, model: str, facts: Facts, health: Health) -> Decision:
    trace: list[tuple[str, str]] = []
    for route in policy.routes:
        failed = next(_failing_keys(route.match, facts, model), None)
        trace.append((route.name, failed or "matched"))
        if failed is None:
            return _dispatch(policy, plan, model, route, health, tuple(trace))
    return Decision(
        decision_id=_decision_id(policy, RejectReason.NO_ROUTE),
        model=model,
        trace=tuple(trace),
        reject=Reject(
            reason=RejectReason.NO_ROUTE,
            message=f"no route matches; add a last route that matches model '{model}'",
        ),
    )


def _dispatch(
    policy: Policy,
    plan: Plan,
    model: str,
    route: Route,
    health: Health,
    trace: tuple[tuple[str, str], ...],
) -> Decision:
    candidates = (route.use, *route.fallback)
    attempts = tuple(
        name
        for state in (BackendState.READY, BackendState.STARTING)
        for name in candidates
        if health.get(name) is state
    )
    rejected = tuple((name, _why_not(name, health)) for name in candidates if name not in attempts)
    message = f"every backend of route '{route.name}' is down: {', '.join(candidates)}"
    return Decision(
        decision_id=f"{policy.digest}/{route.name}",
        model=model,
        route=route.name,
        attempts=attempts,
        timeouts=route.timeouts,
        limits=(
            *(LimitUse(limit, f"plan:{plan.name}") for limit in plan.limits),
            *(LimitUse(limit, f"route:{route.name}") for limit in route.limits),
        ),
        priority=plan.priority,
        weight=plan.weight,
        rejected_candidates=rejected,
        trace=trace,
        reject=None if attempts else Reject(reason=RejectReason.NO_BACKEND, message=message),
    )


def _failing_keys(match: Match, facts: Facts, model: str) -> Iterator[str]:
    """The keys of `match` that do not hold, in the order of the file format."""
    if not _selects(match.models, model):
        yield "model"
    if not _selects(match.tenants, facts.tenant):
        yield "tenant"
    if not _selects(match.plans, facts.plan):
        yield "plan"
    if not _selects(match.endpoints, facts.endpoint):
        yield "endpoint"
    if match.stream is not None and match.stream is not facts.stream:
        yield "stream"
    if not all(
        name in facts.headers and _selects(values, facts.headers[name])
        for name, values in match.headers
    ):
        yield "header"
    if not _in_range(match, facts.prompt_tokens):
        yield "prompt_tokens"


def _selects(patterns: Sequence[str], text: str) -> bool:
    return not patterns or any(glob_matches(pattern, text) for pattern in patterns)


def _in_range(match: Match, prompt_tokens: int | None) -> bool:
    """Whether the prompt's length is known to lie in the range asked for."""
    low, high = match.min_prompt_tokens, match.max_prompt_tokens
    if low is None and high is None:
        return True
    if prompt_tokens is None:
        return False
    return (low is None or prompt_tokens >= low) and (high is None or prompt_tokens <= high)


def _allows(plan: Plan, model: str) -> bool:
    return plan.models == ("*",) or model in plan.models


def _lists(key_models: Sequence[str], model: str) -> bool:
    """Whether a key's own list names the model. An empty list names none."""
    return any(glob_matches(pattern, model) for pattern in key_models)


def _why_not(backend: str, health: Health) -> str:
    return "down" if backend in health else "nobody reports on it"


def _refuse(policy: Policy, reason: RejectReason, message: str, *, model: str = "") -> Decision:
    return Decision(
        decision_id=_decision_id(policy, reason),
        model=model,
        reject=Reject(reason=reason, message=message),
    )


def _decision_id(policy: Policy, reason: RejectReason) -> str:
    return f"{policy.digest}/!{reason.value}"  # no route's name starts with '!'
