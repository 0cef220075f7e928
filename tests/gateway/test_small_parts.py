"""Drain, estimate and the table of errors: small rules without a room of their own."""

from __future__ import annotations

import math

import pytest

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    NoChatTemplate,
    PromptTooLong,
    StreamInterrupted,
    UnsupportedFeature,
)
from backends.types import ChatPrompt, Message, TextPrompt, TokenPrompt
from gateway.drain import Drain
from gateway.errors import InvalidRequest, ModelNotFound, from_backend
from gateway.estimate import estimate_tokens
from gateway.tenancy.keys import mint


def test_nothing_ends_while_nothing_drains() -> None:
    drain = Drain(5.0)
    assert not drain.is_draining
    assert drain.remaining_s(100.0) == math.inf
    assert not drain.is_over(100.0)


def test_an_idle_process_may_end_at_once_and_a_busy_one_when_its_time_is_up() -> None:
    drain = Drain(5.0)
    drain.num_active = 1
    drain.begin(100.0)
    drain.begin(104.0)  # a second signal does not prolong it
    assert drain.remaining_s(104.0) == 1.0
    assert not drain.is_over(104.0)
    assert drain.is_over(105.0)
    drain.num_active = 0
    assert drain.is_over(101.0)


def test_an_estimate_counts_token_ids_exactly_and_text_on_the_high_side() -> None:
    assert estimate_tokens((TokenPrompt(token_ids=(1, 2, 3)),)) == 3
    assert estimate_tokens((TextPrompt(text="x" * 8),)) == 3
    chat = ChatPrompt(messages=(Message(role="user", content="x" * 7),) * 2)
    assert estimate_tokens((chat, TextPrompt(text=""))) == 12


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoChatTemplate(), 400, "chat_template_missing"),
        (UnsupportedFeature("x", param="tools"), 400, "unsupported_value"),
        (BackendRejected("x", param="prompt"), 400, "invalid_value"),
        (
            PromptTooLong(prompt_tokens=9, max_tokens=1, max_total_tokens=8),
            400,
            "context_length_exceeded",
        ),
        (BackendOverloaded("x"), 503, "server_is_overloaded"),
        (BackendTimeout("x"), 504, "timeout"),
        (BackendUnavailable("x"), 502, "upstream_error"),
        (StreamInterrupted("x"), 502, "upstream_error"),
        (BackendProtocolError("x"), 502, "upstream_error"),
    ],
)
def test_what_goes_wrong_behind_the_seam_has_one_face(
    error: BackendError, status: int, code: str
) -> None:
    told = from_backend(error)
    assert told.status == status
    shown = told.detail_code if isinstance(told, InvalidRequest) else told.code
    assert shown == code


def test_a_key_that_a_client_pasted_anywhere_is_not_told_back() -> None:
    """Q-KEY-IN-LOGS: not in what it is told, nor in the exception's own text."""
    key = mint(bytes(range(32)))
    error = ModelNotFound(key)
    assert key not in error.message + str(error)
    assert error.message.startswith(f"The model '{key[:12]}…' does not exist")
