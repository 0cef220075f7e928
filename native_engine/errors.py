"""What an engine refuses, and why. Knows no HTTP.

EngineError
├─ ModelFileError       the model's files are missing, cut short or of an unknown kind
├─ RequestTooLong       can never fit the context or the KV blocks
├─ InvalidTokenId       a token id of the request is outside the vocabulary
├─ DuplicateRequest     the id is already in use
└─ QueueFull            too many are waiting
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all engine errors."""


class ModelFileError(EngineError):
    """A model's files cannot be used.

    The message names the file, the tensor or key, and the remedy.
    """


class RequestTooLong(EngineError):
    """The request can never run, however long it waits."""


class InvalidTokenId(EngineError):
    """A token id outside the vocabulary."""


class DuplicateRequest(EngineError):
    """A request with this id is queued or running."""


class QueueFull(EngineError):
    """Too many requests are waiting; try again in `retry_after_s`, if that can be told."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
