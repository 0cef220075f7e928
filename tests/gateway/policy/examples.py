"""A policy with a bit of everything, for the tests of this package."""

from __future__ import annotations

from collections.abc import Mapping

from backends.base import BackendState
from gateway.policy.choose import BackendHealth, Health
from gateway.policy.load import parse
from gateway.policy.match import Facts
from gateway.policy.model import Policy
from gateway.policy.problems import PolicyError, Problem

TEXT = """\
version: 1
backends:
  small: {engine: native, model: smollm2-135m-instruct}
  spare: {engine: echo, delay_ms: 5}
  large: {engine: native, model: ./large.gguf}
models:
  chat: {aliases: [gpt-4o-mini, Chat-Latest]}
  team/big: {}
limits:
  free: {requests: 60/min, tokens: 40k/min, concurrent: 4}
  paid: {requests: 10/s}
plans:
  free: {limits: [free], models: [chat], priority: low}
  pro: {limits: [paid], models: "*", priority: high, weight: 2.5}
routes:
  - name: long-prompts
    match: {model: chat, prompt_tokens: {over: 8k}}
    use: large
    fallback: [small]
  - name: acme-streams
    match: {model: chat, tenant: "acme-*", endpoint: [chat, completions], stream: true}
    use: spare
  - name: chat-default
    match: {model: chat}
    use: small
    fallback: [spare, large]
    timeout: {first_token: 2s}
  - name: big
    match: {model: "team/*", plan: pro}
    use: large
defaults:
  model: chat
  estimate_output: 256
  timeout: {first_token: 500ms, between_tokens: 20s, total: 2m}
telemetry: {content: off}
"""


def policy() -> Policy:
    return parse(TEXT, "policy.yaml")


def facts(
    *,
    tenant: str = "globex",
    plan: str = "pro",
    model: str = "chat",
    endpoint: str = "chat",
    stream: bool = False,
    prompt_tokens: int | None = 100,
    headers: Mapping[str, str] | None = None,
) -> Facts:
    return Facts(
        tenant=tenant,
        plan=plan,
        model=model,
        endpoint=endpoint,
        stream=stream,
        headers=headers or {},
        prompt_tokens=prompt_tokens,
    )


def health_of(**states: BackendState) -> Health:
    """By backend, and none of them busy."""
    return {name: BackendHealth(state) for name, state in states.items()}


def problems_after(old: str, new: str) -> tuple[Problem, ...]:
    """What is wrong with the policy once `old`, which stands in it, is replaced by `new`."""
    assert old in TEXT
    return problems_in(TEXT.replace(old, new, 1))


def problems_in(text: str) -> tuple[Problem, ...]:
    error = error_of(text)
    return error.problems if error else ()


def error_of(text: str) -> PolicyError | None:
    """Why the text is no policy; None if it is one."""
    try:
        parse(text, "policy.yaml")
    except PolicyError as error:
        return error
    return None
