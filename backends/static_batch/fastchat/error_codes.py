"""FastChat's error codes: what stands in place of an HTTP status in an answer or a frame.

Source: FastChat 0.2.36, `constants.py`.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """What `error_code` may say; 0 is no error."""

    VALIDATION_TYPE_ERROR = 40001
    INVALID_MODEL = 40301
    PARAM_OUT_OF_RANGE = 40302
    CONTEXT_OVERFLOW = 40303
    RATE_LIMIT = 42901
    QUOTA_EXCEEDED = 42902
    ENGINE_OVERLOADED = 42903
    INTERNAL_ERROR = 50001
    CUDA_OUT_OF_MEMORY = 50002
    NO_WORKER = 50005
    WORKER_TIMEOUT = 50006
