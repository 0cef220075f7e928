from __future__ import annotations

import pytest

from backends.collector import Collector, error_of
from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendUnavailable,
    PromptTooLong,
    StreamInterrupted,
)
from backends.messages import Output, Rejected, RejectionKind
from native_engine.types import FinishReason, SampledToken


def output(token_id: int, finish_reason: FinishReason | None = None) -> Output:
    return Output("a", SampledToken(token_id=token_id), finish_reason)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (RejectionKind.TOO_LONG, PromptTooLong),
        (RejectionKind.INVALID_TOKEN_ID, BackendRejected),
        (RejectionKind.QUEUE_FULL, BackendOverloaded),
        (RejectionKind.DUPLICATE, BackendProtocolError),
        (RejectionKind.OTHER, BackendRejected),
    ],
)
def test_every_refusal_has_an_error_of_its_own(
    kind: RejectionKind, error: type[BackendError]
) -> None:
    assert type(error_of(Rejected(("a",), kind, "why"))) is error


@pytest.mark.parametrize(("estimate_s", "told_s"), [(12.5, 12.5), (0.0, 0.0), (None, 1.0)])
def test_a_full_engine_s_estimate_is_passed_on(estimate_s: float | None, told_s: float) -> None:
    error = error_of(
        Rejected(("a",), RejectionKind.QUEUE_FULL, "full", retry_after_s=estimate_s),
    )
    assert isinstance(error, BackendOverloaded)
    assert error.retry_after_s == told_s


async def test_merges_what_has_come_since_it_was_last_read() -> None:
    collector = Collector(["a"], max_pending=10)
    collector.put(output(1))
    assert await collector.take() == [output(1)]

    collector.put(output(2))
    collector.put(output(3, FinishReason.EOS))

    assert await collector.take() == [output(2), output(3, FinishReason.EOS)]
    assert collector.is_drained


async def test_hands_out_what_had_come_before_the_error() -> None:
    collector = Collector(["a"], max_pending=10)
    collector.put(output(1))
    collector.interrupt("it died")
    collector.interrupt("and once more")

    assert await collector.take() == [output(1)]
    with pytest.raises(StreamInterrupted, match="it died"):
        await collector.take()


async def test_another_attempt_may_help_only_before_the_first_output() -> None:
    collector = Collector(["a"], max_pending=10)
    collector.interrupt("it died")

    assert not collector.is_drained
    with pytest.raises(BackendUnavailable):
        await collector.take()


async def test_keeps_no_more_than_it_may() -> None:
    collector = Collector(["a"], max_pending=2)
    for token_id in range(3):
        collector.put(output(token_id, FinishReason.EOS if token_id == 2 else None))

    assert collector.has_failed
    assert not collector.is_drained, "even when that was the last output"
    with pytest.raises(StreamInterrupted, match="more than 2 tokens too late"):
        await collector.take()
