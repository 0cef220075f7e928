"""Where a request goes: one pure function over the policy, the request's facts, who is up and how
busy, and, where somebody gives it, what the limits have left.

No I/O, no clock, no randomness but the seed, and no exception whatever the facts are: a refusal is
a decision too. Serving, explaining and testing a policy all call `decide`. Knows nothing of HTTP or
tenants' counters. The messages of a refusal are for the operator; what a client may be told of a
model that is not its own is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from backends.base import BackendState
from gateway.policy.choose import Health, by_balance, by_share
from gateway.policy.match import Facts, glob_matches
from gateway.policy.model import (
    Decision,
    LimitUse,
    Plan,
    Policy,
    Reject,
    RejectReason,
    Route,
)
from gateway.policy.usage import Usage, allowance_used_up, amounts_of, checked

# What clients send when they have no model to name: nothing, TGI's and huggingface_hub's
# stand-ins, or the address of the server itself.
_PLACEHOLDERS = ("", "tgi", "dummy")
_ADDRESSES = ("http://", "https://")

_BY_READINESS = (BackendState.READY, BackendState.STARTING)


class _Question(NamedTuple):
    """What is asked of the route that matches."""

    policy: Policy
    plan: Plan
    model: str
    facts: Facts
    health: Health
    usage: Usage | None
    seed: int


def decide(
    policy: Policy, facts: Facts, health: Health, usage: Usage | None = None, seed: int = 0
) -> Decision:
    """Resolve the model, check the plan, take the first route that matches, and order its backends.

    A backend that `health` does not mention counts as down. Without `usage` no limit is looked at:
    the store does that when it reserves. `seed` makes the draws of requests without a session.
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
    return _route(_Question(policy, plan, model, facts, health, usage, seed))


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
        if set(route.match.failing_keys(facts, model)) <= {"prompt_tokens"}
        for name in route.backends
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


def _route(asked: _Question) -> Decision:
    trace: list[tuple[str, str]] = []
    for route in asked.policy.routes:
        failed = route.match.first_failing(asked.facts, asked.model)
        trace.append((route.name, failed or "matched"))
        if not failed:
            return _dispatch(asked, route, tuple(trace))
    return Decision(
        decision_id=_decision_id(asked.policy, RejectReason.NO_ROUTE),
        model=asked.model,
        trace=tuple(trace),
        reject=Reject(
            reason=RejectReason.NO_ROUTE,
            message=f"no route matches; add a last route that matches model '{asked.model}'",
        ),
    )


def _dispatch(asked: _Question, route: Route, trace: tuple[tuple[str, str], ...]) -> Decision:
    policy, plan, usage = asked.policy, asked.plan, asked.usage
    out_of_reach = dict(_out_of_reach(asked, route))
    attempts = tuple(
        name
        for state in _BY_READINESS
        for name in _in_order(asked, route)
        if name not in out_of_reach and asked.health[name].state is state
    )
    limits = (
        *(LimitUse(limit, f"plan:{plan.name}") for limit in plan.limits),
        *(LimitUse(limit, f"route:{route.name}") for limit in route.limits),
    )
    decision = Decision(
        decision_id=f"{policy.digest}/{route.name}",
        model=asked.model,
        route=route.name,
        attempts=attempts,
        timeouts=route.timeouts,
        fail_over_on=route.fail_over_on,
        retry=route.retry,
        limits=limits,
        limits_checked=()
        if usage is None
        else checked(limits, amounts_of(policy, asked.facts, attempts), usage),
        priority=plan.priority if route.priority is None else route.priority,
        weight=plan.weight,
        rejected_candidates=tuple(out_of_reach.items()),
        trace=trace,
    )
    reject = _why_refused(decision)
    return decision if reject is None else replace(decision, reject=reject)


def _why_refused(decision: Decision) -> Reject | None:
    """A limit is told before backends that are down: it would refuse the request in any case."""
    short = [one for one in decision.limits_checked if not one.fits]
    if short:
        one = short[0]
        message = (
            f"limit '{one.limit}' of {one.place.replace(':', ' ')} has {one.used} of {one.amount} "
            f"{one.dimension} in use, and the request may take {one.asked}"
        )
        return Reject(reason=RejectReason.LIMIT, message=message, limit=one.limit)
    if decision.attempts:
        return None
    found = ", ".join(f"{name} ({why})" for name, why in decision.rejected_candidates)
    message = f"no backend of route '{decision.route}' can take it: {found}"
    return Reject(reason=RejectReason.NO_BACKEND, message=message)


def _in_order(asked: _Question, route: Route) -> tuple[str, ...]:
    """The route's backends as they are to be tried, each once, whatever their state.

    Of a split, those that were not drawn come before the fallbacks: one that is down is made good
    by the others.
    """
    if len(route.shares) == 1:
        return route.backends
    session = asked.facts.session if route.has_affinity else ""
    key = f"{asked.facts.tenant}\0{session}" if session else str(asked.seed)
    if route.balance:
        up = [name for name in route.shares if _is_up(asked.health, name)] or [*route.shares]
        prices = {name: asked.policy.backends[name].price for name in up}
        first = by_balance(route.balance, up, asked.health, prices, key, is_session=bool(session))
    else:
        first = by_share(route.shares, key)
    return tuple(dict.fromkeys((*first, *route.backends)))


def _out_of_reach(asked: _Question, route: Route) -> Iterator[tuple[str, str]]:
    """The route's backends that the request cannot be sent to, and why."""
    conditions = {
        one.backend: one.when for one in route.fallback if one.backend not in route.shares
    }
    for name in route.backends:
        why = _why_down(asked.health, name)
        if name in conditions:
            failed = conditions[name].first_failing(asked.facts, asked.model)
            why = f"the fallback's condition on '{failed}' does not hold" if failed else why
        if not why and asked.usage is not None:
            backend = asked.policy.backends[name]
            amounts = amounts_of(asked.policy, asked.facts, (name,))
            short = allowance_used_up(backend, amounts, asked.usage)
            why = f"its allowance '{short.limit}' is used up" if short else ""
        if why:
            yield name, why


def _allows(plan: Plan, model: str) -> bool:
    return plan.models == ("*",) or model in plan.models


def _lists(key_models: Sequence[str], model: str) -> bool:
    """Whether a key's own list names the model. An empty list names none."""
    return any(glob_matches(pattern, model) for pattern in key_models)


def _is_up(health: Health, name: str) -> bool:
    return not _why_down(health, name)


def _why_down(health: Health, name: str) -> str:
    """Why nothing can be sent there; "" if something can."""
    one = health.get(name)
    if one is None:
        return "nobody reports on it"
    return "" if one.state in _BY_READINESS else one.why or "down"


def _refuse(policy: Policy, reason: RejectReason, message: str, *, model: str = "") -> Decision:
    return Decision(
        decision_id=_decision_id(policy, reason),
        model=model,
        reject=Reject(reason=reason, message=message),
    )


def _decision_id(policy: Policy, reason: RejectReason) -> str:
    return f"{policy.digest}/!{reason.value}"  # no route's name starts with '!'
