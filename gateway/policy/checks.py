"""What is wrong with a policy as a whole, though each entry is right by itself.

Works on the compiled policy; takes the tree only to say where. One route is found unreachable when
a single earlier route takes all it asks for, not when several do so together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.policy.cover import covers, may_meet
from gateway.policy.decide import allowed_models
from gateway.policy.match import Match, Names
from gateway.policy.model import LimitUse, Policy, Route
from gateway.policy.problems import Problem, Span
from gateway.policy.yaml_nodes import Node, Path


def whole_policy_problems(policy: Policy, root: Node) -> list[Problem]:
    """Rules that never act, models that lead nowhere, limits nothing fits into."""
    return [
        *_unreachable_routes(policy, root),
        *_useless_fallbacks(policy, root),
        *_models_without_route(policy, root),
        *_limits_below_estimate(policy, root),
        *_limits_of_nobody(policy, root),
        *_costs_without_price(policy, root),
        *_deadlines_too_short(policy, root),
    ]


def _unreachable_routes(policy: Policy, root: Node) -> Iterator[Problem]:
    for index, route in enumerate(policy.routes):
        for earlier_index, earlier in enumerate(policy.routes[:index]):
            if covers(policy, earlier.match, route.match):
                yield Problem(
                    code="unreachable-route",
                    message=f"no request reaches route '{route.name}': "
                    f"'{earlier.name}' before it takes all that it matches",
                    span=_span(root, ("routes", index, "name")),
                    also=_span(root, ("routes", earlier_index, "name")),
                    hint="put it first, or narrow the other",
                )
                break


def _useless_fallbacks(policy: Policy, root: Node) -> Iterator[Problem]:
    """Those whose condition excludes all that the route matches."""
    for index, route in enumerate(policy.routes):
        for number, fallback in enumerate(route.fallback):
            if not may_meet(policy, route.match, fallback.when):
                yield Problem(
                    code="fallback-not-allowed",
                    message=f"no request of route '{route.name}' may go to '{fallback.backend}': "
                    "the fallback's condition excludes all that the route matches",
                    span=_span(root, ("routes", index, "fallback", number)),
                    hint="widen 'when', or leave the fallback out",
                )


def _models_without_route(policy: Policy, root: Node) -> Iterator[Problem]:
    for plan in policy.plans.values():
        for model in allowed_models(policy, plan.name):
            if not any(_serves(route, model, plan.name) for route in policy.routes):
                yield Problem(
                    code="no-route-for-model",
                    message=f"plan '{plan.name}' allows model '{model}', which no route serves",
                    span=_span(root, ("plans", plan.name, "models")),
                    hint="add a route that matches it, or take it from the plan",
                )


def _limits_below_estimate(policy: Policy, root: Node) -> Iterator[Problem]:
    for limit in {use.limit.name: use.limit for use, _ in _uses(policy)}.values():
        for kind, rate in (("tokens", limit.tokens), ("output_tokens", limit.output_tokens)):
            if rate is not None and rate.amount < policy.estimate_output_tokens:
                yield Problem(
                    code="limit-below-estimate",
                    message=f"limit '{limit.name}' holds {rate.amount} tokens, but a request "
                    f"without max_tokens reserves {policy.estimate_output_tokens}: none would pass",
                    span=_span(root, ("limits", limit.name, kind)),
                    hint="raise it, or lower defaults.estimate_output",
                )


def _limits_of_nobody(policy: Policy, root: Node) -> Iterator[Problem]:
    """Limits that count `per` something which the place they are attached to does not have."""
    allowed = {"plan": ("tenant", "key", "plan"), "route": ("tenant", "key", "route")}
    for use, path in _uses(policy):
        kind, _, name = use.place.partition(":")
        if use.limit.per and use.limit.per not in allowed.get(kind, ()):
            yield Problem(
                code="no-effect",
                message=f"limit '{use.limit.name}' counts per {use.limit.per}, which {kind} "
                f"'{name}' cannot do",
                span=_span(root, path),
                hint=f"attach it elsewhere, or count per {' or '.join(allowed.get(kind, ()))}"
                if kind in allowed
                else "a backend's limit is the backend's alone: leave out 'per'",
            )


def _costs_without_price(policy: Policy, root: Node) -> Iterator[Problem]:
    told: set[tuple[str, str]] = set()
    for use, _ in _uses(policy):
        for name in _backends_under(policy, use) if use.limit.cost else ():
            if policy.backends[name].price is None and (use.limit.name, name) not in told:
                told.add((use.limit.name, name))
                yield Problem(
                    code="price-missing",
                    message=f"limit '{use.limit.name}' counts money, and backend '{name}', which "
                    "answers under it, has no price",
                    span=_span(root, ("limits", use.limit.name, "cost")),
                    also=_span(root, ("backends", name)),
                    hint=f"give backend '{name}' a price such as {{input: 0.15, output: 0.60}}",
                )


def _uses(policy: Policy) -> Iterator[tuple[LimitUse, Path]]:
    """Every limit that is attached to something, and where the file says so."""
    for plan in policy.plans.values():
        for index, limit in enumerate(plan.limits):
            yield LimitUse(limit, f"plan:{plan.name}"), ("plans", plan.name, "limits", index)
    for number, route in enumerate(policy.routes):
        for index, limit in enumerate(route.limits):
            yield LimitUse(limit, f"route:{route.name}"), ("routes", number, "limits", index)
    for backend in policy.backends.values():
        for index, limit in enumerate(backend.limits):
            place = f"backend:{backend.name}"
            yield LimitUse(limit, place), ("backends", backend.name, "limits", index)


def _backends_under(policy: Policy, use: LimitUse) -> tuple[str, ...]:
    """Those that may answer a request that the limit counts."""
    kind, _, name = use.place.partition(":")
    if kind == "backend":
        return (name,)
    routes: Iterable[Route] = (route for route in policy.routes if route.name == name)
    if kind == "plan":
        models = allowed_models(policy, name)
        routes = (route for model in models for route in _routes_of(policy, model, name))
    found = (backend for route in routes for backend in route.backends)
    return tuple(dict.fromkeys(found))


def _routes_of(policy: Policy, model: str, plan: str) -> Iterator[Route]:
    """Those that may take a request for a model of somebody on a plan: up to one that takes all."""
    every_request = Match(models=Names((model,)), plans=Names((plan,)))
    for route in policy.routes:
        if _serves(route, model, plan):
            yield route
            if covers(policy, route.match, every_request):
                return


def _deadlines_too_short(policy: Policy, root: Node) -> Iterator[Problem]:
    for index, route in enumerate(policy.routes):
        if route.timeouts.first_token_s >= route.timeouts.total_s:
            yield Problem(
                code="deadline-too-short",
                message=f"route '{route.name}' waits {route.timeouts.first_token_s:g}s for the "
                f"first token, but for all of the answer only {route.timeouts.total_s:g}s",
                span=_span(root, ("routes", index, "name")),
                hint="total must be more than first_token",
            )


def _serves(route: Route, model: str, plan: str) -> bool:
    match = route.match
    return all(
        names is None or names.hold(name)
        for names, name in ((match.models, model), (match.plans, plan))
    )


def _span(root: Node, path: Path) -> Span:
    return root.at(path).span
