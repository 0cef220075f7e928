"""What can go wrong behind the seam, and whether another attempt may help. Knows no HTTP status.

BackendError
├─ BackendUnavailable       retryable   not started, crashed, refused, reset before the first byte
│  └─ BackendFailed         retryable   it answered that it cannot: upstream 5xx
├─ BackendOverloaded        retryable   queue full, upstream 429/503
├─ BackendTimeout           retryable   nothing came before the first token's deadline
├─ DeadlineExceeded         —           the request's own time was over before its first token
├─ BackendRejected          —           the request itself is at fault: another attempt cannot help
│  ├─ PromptTooLong         —           the prompt, or prompt + max_tokens, does not fit
│  ├─ UnsupportedFeature    —           this backend cannot do what the request asks
│  └─ NoChatTemplate        —           the model has none: it takes plain prompts only
├─ BackendProtocolError     retryable   the other side broke its own protocol
└─ StreamInterrupted        —           it died after the first token
"""

from __future__ import annotations


class BackendError(Exception):
    """Base of all; `retryable` is the class's word on whether another attempt may help."""

    retryable = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BackendUnavailable(BackendError):
    """The backend is not there (yet, or any more). Nothing was generated."""

    retryable = True


class BackendFailed(BackendUnavailable):
    """The backend is there, and says of itself that it failed. Nothing was generated."""


class BackendOverloaded(BackendError):
    """The backend is there and full.

    `retry_after_s` is its own estimate of when it is worth coming back; a second if it has none.
    """

    retryable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = 1.0 if retry_after_s is None else retry_after_s


class BackendTimeout(BackendError):
    """No first token in time."""

    retryable = True


class DeadlineExceeded(BackendError):
    """The request's `timeout_s` was over before it had a token: no other attempt has any left."""


class BackendRejected(BackendError):
    """The request is at fault.

    `param` names the field, in the words of `GenerationRequest`, if one does.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(BackendRejected):
    """The prompt alone (`max_tokens` 0), or with the tokens asked for, does not fit
    `max_total_tokens`.
    """

    def __init__(self, *, prompt_tokens: int, max_tokens: int, max_total_tokens: int) -> None:
        asked = f" and {max_tokens} tokens were asked for" if max_tokens else ""
        super().__init__(
            f"the prompt has {prompt_tokens} tokens{asked}, but at most {max_total_tokens} fit; "
            "shorten it",
            param="prompt",
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_total_tokens = max_total_tokens


class UnsupportedFeature(BackendRejected):
    """A field of the request that this backend does not implement."""


class NoChatTemplate(BackendRejected):
    """Messages for a model whose files have no chat template."""

    def __init__(self) -> None:
        super().__init__(
            "this model has no chat template; send a plain prompt in place of messages",
            param="messages",
        )


class BackendProtocolError(BackendError):
    """The engine or upstream sent something it must not."""

    retryable = True


class StreamInterrupted(BackendError):
    """The engine or upstream died after the first token: part of the answer is already out."""
