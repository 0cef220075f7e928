"""What the gateway says when it cannot serve: one tree, one table; dialects spell it their way.

                                 status  type                       code
GatewayError
├─ ClientError
│  ├─ InvalidRequest              400    invalid_request_error      invalid_value
│  │  ├─ MalformedBody            400    invalid_request_error      null
│  │  ├─ UnsupportedMediaType     415    invalid_request_error      null
│  │  ├─ BodyTooLarge             413    invalid_request_error      request_too_large
│  │  ├─ UnsupportedValue         400    invalid_request_error      unsupported_value
│  │  └─ ContextLengthExceeded    400    invalid_request_error      context_length_exceeded
│  ├─ Unauthenticated             401    invalid_request_error      invalid_api_key
│  │  └─ IpNotAuthorized          401    invalid_request_error      ip_not_authorized
│  ├─ Forbidden                   403    invalid_request_error      insufficient_permissions
│  ├─ ModelNotFound               404    invalid_request_error      model_not_found
│  ├─ TenantNotFound              404    invalid_request_error      tenant_not_found
│  ├─ KeyNotFound                 404    invalid_request_error      key_not_found
│  ├─ RouteNotFound               404    invalid_request_error      null
│  ├─ MethodNotAllowed            405    invalid_request_error      null
│  ├─ Conflict                    409    invalid_request_error      conflict
│  └─ RateLimited                 429    requests | tokens          rate_limit_exceeded
│     └─ QuotaExhausted           429    insufficient_quota         insufficient_quota
└─ ServerError
   ├─ Overloaded                  503    service_unavailable_error  server_is_overloaded
   ├─ Draining                    503    service_unavailable_error  shutting_down
   ├─ UpstreamFailed              502    server_error               upstream_error
   ├─ UpstreamTimeout             504    server_error               timeout
   └─ InternalError               500    server_error               null

Errors are classified by type, never by message text. A message says what is wrong, where, and how
to fix it. A client may retry what carries `retry_after_s`, and 502 and 504; nothing else.
"""

from __future__ import annotations

from typing import ClassVar

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendRejected,
    BackendTimeout,
    DeadlineExceeded,
    NoChatTemplate,
    PromptTooLong,
    UnsupportedFeature,
)
from gateway.redaction import redact


class GatewayError(Exception):
    """Base of all. The class attributes are the table above."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.message = redact(message)  # clients paste their key anywhere, and messages quote them
        super().__init__(self.message)
        self.param = param


class ClientError(GatewayError):
    """The request cannot be served as it is."""

    status = 400
    type = "invalid_request_error"


class InvalidRequest(ClientError):
    """A field is missing, of the wrong type or out of range; `param` names it.

    `code` may say it more finely.
    """

    code: ClassVar[str | None] = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        self.detail_code = code or type(self).code


class MalformedBody(InvalidRequest):
    """The body is no JSON object."""

    code = None


class UnsupportedMediaType(InvalidRequest):
    """The content type is not JSON."""

    status = 415
    code = None


class BodyTooLarge(InvalidRequest):
    """The body is over the limit; it was not read to the end."""

    status = 413
    code = "request_too_large"


class UnsupportedValue(InvalidRequest):
    """A legal field that nothing here implements."""

    code = "unsupported_value"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer do not fit. The figures are kept for dialects with wording of their own."""

    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, max_tokens: int, max_total_tokens: int) -> None:
        asked = f" and {max_tokens} completion tokens were asked for" if max_tokens else ""
        super().__init__(
            f"This model's maximum context length is {max_total_tokens} tokens. "
            f"However, your messages resulted in {prompt_tokens} tokens{asked}. "
            "Please reduce the length of the messages or completion.",
            param="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_total_tokens = max_total_tokens


class Unauthenticated(ClientError):
    """No key, or one that opens nothing.

    `missing` when none was sent in a form that can be read.
    """

    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class IpNotAuthorized(Unauthenticated):
    """The key is good, but not from this address."""

    code = "ip_not_authorized"


class Forbidden(ClientError):
    """The key is good, but not for this."""

    status = 403
    code = "insufficient_permissions"


class ModelNotFound(ClientError):
    """Unknown, or not this tenant's: the two are not told apart."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{model}' does not exist or you do not have access to it.", param="model"
        )
        self.model = model


class TenantNotFound(ClientError):
    """An operator named a tenant that does not exist."""

    status = 404
    code = "tenant_not_found"


class KeyNotFound(ClientError):
    """An operator named a key that does not exist."""

    status = 404
    code = "key_not_found"


class Conflict(ClientError):
    """What an operator asked for is not possible as things stand; `code` may say it more finely."""

    status = 409
    code: ClassVar[str | None] = "conflict"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.detail_code = code or type(self).code


class RouteNotFound(ClientError):
    """No such path."""

    status = 404


class MethodNotAllowed(ClientError):
    """The path exists, not for this method."""

    status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class RateLimited(ClientError):
    """A limit that has room again soon.

    dimension: "requests" | "input_tokens" | "output_tokens" | "tokens" | "cost" | "concurrency".
    """

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float,
        dimension: str,
        limit: str,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.dimension = dimension
        self.limit = limit
        self.headers = headers  # `x-ratelimit-*`: every answer to a limited tenant carries them


class QuotaExhausted(RateLimited):
    """A day's or month's allowance is used up: retrying soon is pointless."""

    type = "insufficient_quota"
    code = "insufficient_quota"


class ServerError(GatewayError):
    """The request may be fine; we could not serve it."""


class Overloaded(ServerError):
    """Everything that could take it is full or not there."""

    status = 503
    type = "service_unavailable_error"
    code = "server_is_overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(ServerError):
    """This process is shutting down; another one will serve."""

    status = 503
    type = "service_unavailable_error"
    code = "shutting_down"
    retry_after_s: ClassVar[float] = 1.0


class UpstreamFailed(ServerError):
    """The last attempt failed in a way that is not the client's fault."""

    status = 502
    code = "upstream_error"


class UpstreamTimeout(ServerError):
    """The deadline came before the answer."""

    status = 504
    code = "timeout"


class InternalError(ServerError):
    """Our bug. The message tells the client nothing of the inside; the log has the traceback."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing your request.")


def from_backend(error: BackendError) -> GatewayError:
    """The one place where what went wrong behind the seam becomes what the client is told."""
    match error:
        case PromptTooLong():
            return ContextLengthExceeded(
                prompt_tokens=error.prompt_tokens,
                max_tokens=error.max_tokens,
                max_total_tokens=error.max_total_tokens,
            )
        case UnsupportedFeature():
            return UnsupportedValue(error.message, param=error.param)
        case NoChatTemplate():
            return InvalidRequest(error.message, param=error.param, code="chat_template_missing")
        case BackendRejected():
            return InvalidRequest(error.message, param=error.param)
        case BackendOverloaded():
            return Overloaded(error.message, retry_after_s=error.retry_after_s)
        case BackendTimeout() | DeadlineExceeded():
            return UpstreamTimeout(error.message)
        case _:
            return UpstreamFailed(error.message)
