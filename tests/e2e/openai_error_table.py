"""The errors of the gateway, as openai-python must see each of them: one row each.

Knows what to ask for, of which policy, with whose key; how to ask and to look, it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

import openai

from tests.e2e.openai_refusals import Ask

POLICY = """\
version: 1
currency: EUR
backends:
  echo: {engine: echo}
  priced: {engine: echo, price: {input: 1000000, output: 1000000}}
  short: {engine: echo, max_model_len: 16}
  endless: {engine: echo, token_delay_s: 60}
  late: {engine: echo, first_token_delay_s: 60}
  full: {engine: echo, max_concurrent_requests: 0}
  absent: {engine: fastchat, model: nobody, controller_port: 0}  # no worker will ever register
  failing: {engine: echo, fail_before: true}
  cutting: {engine: echo, fail_after_tokens: 2}
models:
  {echo: {}, priced: {}, short: {}, endless: {}, late: {}, full: {}, absent: {}, failing: {},
   cutting: {}}
limits:
  requests: {requests: 1/min}
  tokens: {tokens: 20/min}
  alone: {concurrent: 1}
  hourly: {requests: 1/h}
  daily: {tokens: 19/day}  # a request reserves 13 and uses 7
  monthly: {requests: 1/month}
  money: {cost: 19/month}
plans:
  demo: {limits: [], models: "*"}
  requests: {limits: [requests], models: "*"}
  tokens: {limits: [tokens], models: "*"}
  alone: {limits: [alone], models: "*"}
  hourly: {limits: [hourly], models: "*"}
  daily: {limits: [daily], models: "*"}
  monthly: {limits: [monthly], models: "*"}
  money: {limits: [money], models: [priced]}
  narrow: {limits: [], models: [echo]}
routes:
  - {name: priced, match: {model: priced}, use: priced}
  - {name: short, match: {model: short}, use: short}
  - {name: endless, match: {model: endless}, use: endless}
  - {name: late, match: {model: late}, use: late, timeout: {first_token: 200ms, total: 1s}}
  - {name: full, match: {model: full}, use: full}
  - {name: absent, match: {model: absent}, use: absent}
  - {name: failing, match: {model: failing}, use: failing}
  - {name: cutting, match: {model: cutting}, use: cutting}
  - {name: all, use: echo}
defaults:
  model: echo
  estimate_output: 10
"""
BODY_LIMIT_BYTES = 20_000

INVALID = "invalid_request_error"


def chat(model: str = "echo", content: str = "one two three", *, max_tokens: int = 10) -> Ask:
    """Ask for a chat completion."""
    return lambda client: client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": content}], max_tokens=max_tokens
    )


def chat_with(**headers: str | openai.Omit) -> Ask:
    """Ask with other headers; `Omit` leaves one out."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda client: client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": "one"}], extra_headers=sent
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table: what is asked with whose key, and what comes of it."""

    name: str
    ask: Ask
    key: str = "demo"
    status: int
    error: type[openai.APIStatusError]
    code: str | None
    type: str = INVALID
    param: str | None = None
    says: str  # a part of the message


AT_ONCE = (  # no wait would mend it
    Row(
        name="no-key",
        ask=chat_with(authorization=openai.Omit()),
        status=401,
        error=openai.AuthenticationError,
        code=None,
        says="No API key was sent",
    ),
    Row(
        name="no-bearer",
        ask=chat_with(authorization="Basic dTpw"),
        status=401,
        error=openai.AuthenticationError,
        code=None,
        says="The Authorization header holds no key",
    ),
    Row(
        name="two-keys",
        ask=chat_with(x_api_key="another"),
        status=401,
        error=openai.AuthenticationError,
        code=None,
        says="2 credentials were sent",
    ),
    Row(
        name="malformed-key",
        ask=chat(),
        key="malformed",
        status=401,
        error=openai.AuthenticationError,
        code="invalid_api_key",
        says="not a whole key",
    ),
    Row(
        name="unknown-key",
        ask=chat(),
        key="unknown",
        status=401,
        error=openai.AuthenticationError,
        code="invalid_api_key",
        says="API key",
    ),
    Row(
        name="revoked-key",
        ask=chat(),
        key="revoked",
        status=401,
        error=openai.AuthenticationError,
        code="invalid_api_key",
        says="API key",
    ),
    Row(
        name="expired-key",
        ask=chat(),
        key="expired",
        status=401,
        error=openai.AuthenticationError,
        code="invalid_api_key",
        says="has expired",
    ),
    Row(
        name="address",
        ask=chat(),
        key="afar",
        status=401,
        error=openai.AuthenticationError,
        code="ip_not_authorized",
        says="may not be used from your address",
    ),
    Row(
        name="scope",
        ask=chat(),
        key="lists",
        status=403,
        error=openai.PermissionDeniedError,
        code="insufficient_permissions",
        says="lacks the scope 'inference'",
    ),
    Row(
        name="unknown-model",
        ask=chat("nope"),
        status=404,
        error=openai.NotFoundError,
        code="model_not_found",
        param="model",
        says="The model 'nope' does not exist or you do not have access to it.",
    ),
    Row(
        name="foreign-model",
        ask=chat("short"),
        key="narrow",
        status=404,
        error=openai.NotFoundError,
        code="model_not_found",
        param="model",
        says="The model 'short' does not exist or you do not have access to it.",
    ),
    Row(
        name="bad-field",
        ask=chat(max_tokens=-1),
        status=400,
        error=openai.BadRequestError,
        code="integer_below_min_value",
        param="max_tokens",
        says="max_tokens",
    ),
    Row(
        name="unknown-role",
        ask=lambda client: client.post(
            "/chat/completions",
            cast_to=object,
            body={"model": "echo", "messages": [{"role": "nobody", "content": "one"}]},
        ),
        status=400,
        error=openai.BadRequestError,
        code="invalid_value",
        param="messages[0].role",
        says="nobody",
    ),
    Row(
        name="no-json",
        ask=lambda client: client.post(
            "/chat/completions",
            cast_to=object,
            content=b"{",
            options={"headers": {"content-type": "application/json"}},
        ),
        status=400,
        error=openai.BadRequestError,
        code=None,
        says="JSON",
    ),
    Row(
        name="prompt-too-long",
        ask=chat("short", "word " * 20),
        status=400,
        error=openai.BadRequestError,
        code="context_length_exceeded",
        param="messages",
        says="maximum context length is 16 tokens",
    ),
    Row(
        name="larger-than-a-limit",
        ask=chat(max_tokens=100),
        key="tokens",
        status=400,
        error=openai.BadRequestError,
        code="request_exceeds_limit",
        param="max_tokens",
        says="but limit 'tokens' holds 20 per minute",
    ),
    Row(
        name="body-too-large",
        ask=chat(content="x" * BODY_LIMIT_BYTES),
        status=413,
        error=openai.APIStatusError,  # openai has no class of its own for it
        code="request_too_large",
        says="larger than 20000 bytes",
    ),
    Row(
        name="media-type",
        ask=chat_with(content_type="text/plain"),
        status=415,
        error=openai.APIStatusError,  # nor for this, nor for 405
        code=None,
        says="send the body as 'application/json'",
    ),
    Row(
        name="path",
        ask=lambda client: client.audio.speech.create(input="a", model="echo", voice="ash"),
        status=404,
        error=openai.NotFoundError,
        code=None,
        says="Invalid URL (POST /v1/audio/speech)",
    ),
    Row(
        name="method",
        ask=lambda client: client.chat.completions.list(),
        status=405,
        error=openai.APIStatusError,
        code=None,
        says="use POST",
    ),
)

WHEN_TOLD = (  # again, after the wait that our headers ask for
    Row(
        name="full",
        ask=chat("full"),
        status=503,
        error=openai.InternalServerError,
        code="server_is_overloaded",
        type="service_unavailable_error",
        says="0 requests are running",
    ),
    Row(
        name="down",
        ask=chat("absent"),
        status=503,
        error=openai.InternalServerError,
        code="server_is_overloaded",
        type="service_unavailable_error",
        says="absent",
    ),
    Row(
        name="requests",
        ask=chat(),
        key="requests",
        status=429,
        error=openai.RateLimitError,
        code="rate_limit_exceeded",
        type="requests",
        says="Limit 'requests' of 1 requests per minute is reached",
    ),
    Row(
        name="tokens",
        ask=chat(max_tokens=15),
        key="tokens",
        status=429,
        error=openai.RateLimitError,
        code="rate_limit_exceeded",
        type="tokens",
        says="Limit 'tokens' of 20 tokens per minute is reached",
    ),
    Row(
        name="concurrency",
        ask=chat(),
        key="alone",
        status=429,
        error=openai.RateLimitError,
        code="rate_limit_exceeded",
        type="requests",
        says="Limit 'alone' of 1 requests at a time is reached",
    ),
)

AT_ITS_OWN_PACE = (  # again, but nobody knows when it is better
    Row(
        name="failed",
        ask=chat("failing"),
        status=502,
        error=openai.InternalServerError,
        code="upstream_error",
        type="server_error",
        says="told to fail",
    ),
    Row(
        name="deadline",
        ask=chat("late"),
        status=504,
        error=openai.InternalServerError,
        code="timeout",
        type="server_error",
        says="sent no first token within 0.2 s",
    ),
)

QUOTA = Row(
    name="quota",
    ask=chat(),
    status=429,
    error=openai.RateLimitError,
    code="insufficient_quota",
    type="insufficient_quota",
    says="is reached",
)
