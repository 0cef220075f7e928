"""From a request that is over to its usage record: what was used, of whom, and what it costs.

Pure but for the clocks it is given. Record and charge (`spend_of`) are made of the same figures, so
that records and counters add up to the same.
"""

from __future__ import annotations

from gateway.call import Call, Share
from gateway.policy.model import Decision, Policy
from gateway.policy.prices import dearest
from gateway.stores.base import Spend
from gateway.tenancy.tenants import Principal
from gateway.usage.record import UsageRecord


def usage_record(call: Call, principal: Principal) -> UsageRecord:
    """What a request is billed by. Called once, when it is over."""
    decision = call.decision or Decision(decision_id="")
    prompt_tokens, cached_tokens, completion_tokens = (
        (call.prompt_tokens, call.cached_tokens, call.completion_tokens)
        if call.tokens_used
        else (0, 0, 0)  # the prompt was counted, but no backend took it on
    )
    return UsageRecord(
        request_id=call.stamp.request_id,
        time_s=call.services.wall_clock(),
        tenant_id=principal.tenant.tenant_id,
        tenant=principal.tenant.name,
        key_id=principal.key_id,
        plan=principal.tenant.plan,
        model=decision.model,
        backend=call.backend,
        route=decision.route,
        decision_id=decision.decision_id,
        endpoint=call.endpoint,
        stream=call.stream,
        status=call.status,
        outcome=call.outcome,
        num_attempts=call.num_attempts,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        estimated=bool(call.tokens_used) and _is_estimated(call),
        currency=call.services.policy.currency,
        cost_micros=_cost_micros(call) if call.tokens_used else 0,
        total_s=call.elapsed_s(),
        first_token_s=call.first_token_s,
        queue_s=call.queue_s,
    )


def spend_of(call: Call) -> Spend | None:
    """What its lease is settled with; None if no backend took it on, and it costs nothing."""
    if not call.tokens_used:
        return None
    return Spend(
        input_tokens=call.prompt_tokens,
        output_tokens=call.completion_tokens,
        cost_micros=_cost_micros(call) or 0,
    )


def spend_of_attempt(call: Call) -> Spend | None:
    """What its latest attempt used of a backend; None if it gave nothing.

    Of an answer that another had begun, that part is part of the prompt here.
    """
    if not (call.attempt_tokens if call.handed_over else call.tokens_used):
        return None
    num_before = call.completion_tokens - call.attempt_tokens
    price = call.services.policy.backends[call.backend].price
    prompt_tokens = call.prompt_tokens + num_before
    return Spend(
        input_tokens=prompt_tokens,
        output_tokens=call.attempt_tokens,
        cost_micros=0
        if price is None
        else price.cost_micros(
            prompt_tokens=prompt_tokens,
            cached_tokens=call.cached_tokens,
            completion_tokens=call.attempt_tokens,
        ),
    )


def _is_estimated(call: Call) -> bool:
    """By the backend's own word; of an answer cut short, whether it had counted the prompt."""
    return call.counted_by != call.backend if call.estimated is None else call.estimated


def _cost_micros(call: Call) -> int | None:
    """The prompt by the price of the backend that began, and of the answer each part by that of
    the backend it is from; None if none has a price.

    What was cached is known of the backend that ended alone.
    """
    shares = (*call.handed_over, Share(call.backend, call.attempt_tokens))
    policy = call.services.policy
    costs = [
        price.cost_micros(
            prompt_tokens=0 if number else call.prompt_tokens,
            cached_tokens=0 if call.handed_over else call.cached_tokens,
            completion_tokens=share.completion_tokens,
        )
        for number, share in enumerate(shares)
        if (price := policy.backends[share.backend].price) is not None
    ]
    return sum(costs) if costs else None


def dearest_micros(
    policy: Policy, decision: Decision, prompt_tokens: int, output_tokens: int
) -> int:
    """The most a request may cost: one backend may begin, and the dearest go on."""
    price = dearest(policy.backends[name].price for name in decision.attempts)
    return price.cost_micros(
        prompt_tokens=prompt_tokens, cached_tokens=0, completion_tokens=output_tokens
    )
