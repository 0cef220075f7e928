"""What becomes of a sequence, and what is told of it: a token, the end of its time, a failed step.

The same for every local engine. Knows no blocks and no queues: whoever calls ends what has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from native_engine.errors import EngineError
from native_engine.sequence import Sequence
from native_engine.types import FinishReason, PromptLogprob, SampledToken, SequenceOutput

MAX_FAILED_STEPS = 3
"""So many failing steps in a row mean that the device, not a request, is broken."""


class FailedSteps:
    """How many steps of an engine have failed in a row."""

    def __init__(self) -> None:
        self._count = 0

    def forget(self) -> None:
        """A step has succeeded."""
        self._count = 0

    def tell(self, sequences: Iterable[Sequence], error: Exception) -> list[SequenceOutput]:
        """What is told to those that a failed step has ended.

        Raises:
            EngineError: it keeps happening; the engine cannot go on.
        """
        self._count += 1
        message = f"the forward pass failed: {type(error).__name__}: {error}"
        if self._count >= MAX_FAILED_STEPS:
            raise EngineError(f"{self._count} steps in a row: {message}") from error
        return [SequenceOutput(request_id=s.request_id, error=message) for s in sequences]


def expired(sequences: Iterable[Sequence]) -> list[SequenceOutput]:
    """What is told to those whose time is over."""
    return [
        SequenceOutput(request_id=sequence.request_id, finish_reason=FinishReason.DEADLINE)
        for sequence in sequences
    ]


def advance(sequence: Sequence, token: SampledToken) -> SequenceOutput:
    """Add a token to what is known of a running sequence, and say so.

    The first output tells of the prompt, too. Who wants no token gets none.
    """
    if sequence.num_drawn:
        return SequenceOutput(
            request_id=sequence.request_id, token=token, finish_reason=_take(sequence, token)
        )
    wants_token = sequence.sampling.max_tokens > 0
    prompt_logprobs = _prompt_logprobs(sequence)
    return SequenceOutput(
        request_id=sequence.request_id,
        token=token if wants_token else None,
        finish_reason=_take(sequence, token) if wants_token else FinishReason.LENGTH,
        queue_s=sequence.queue_s,
        cached_tokens=sequence.num_cached_tokens,
        prompt_logprobs=prompt_logprobs,
    )


def _prompt_logprobs(sequence: Sequence) -> tuple[PromptLogprob, ...] | None:
    """Those that were collected, handed out once."""
    if sequence.sampling.num_prompt_logprobs is None:
        return None
    collected = tuple(sequence.prompt_logprobs)
    sequence.prompt_logprobs.clear()
    # It has them: should it be computed anew, it comes back like any other.
    sequence.sampling = replace(sequence.sampling, num_prompt_logprobs=None)
    return collected


def _take(sequence: Sequence, token: SampledToken) -> FinishReason | None:
    """Add a token to what is known; why that ends the sequence, if it does."""
    sequence.token_ids.append(token.token_id)
    sampling = sequence.sampling
    if token.token_id in sampling.eos_token_ids and not sampling.ignore_eos:
        return FinishReason.EOS
    if token.token_id in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(sequence.token_ids) >= sequence.max_num_tokens:
        return FinishReason.LENGTH
    return None
