"""Log-probabilities of token ids, with the text and the exact bytes that the gateway reports.

Knows nothing of requests, choices or engines' steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.text.tokenizer import Tokenizer
from backends.types import PromptToken, TokenLogprob
from native_engine import types as engine


def token_logprob(tokenizer: Tokenizer, token_id: int, logprob: float) -> TokenLogprob:
    """One entry of the vocabulary, decoded alone."""
    raw = tokenizer.token_bytes(token_id)
    return TokenLogprob(
        token_id=token_id, text=raw.decode("utf-8", "replace"), raw=raw, logprob=logprob
    )


def prompt_tokens(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    starts: Sequence[int],
    logprobs: Sequence[engine.PromptLogprob],
) -> tuple[PromptToken, ...]:
    """All tokens of a prompt; `logprobs` are of all but the first."""

    def told(token_id: int, start: int, known: engine.PromptLogprob | None) -> PromptToken:
        raw = tokenizer.token_bytes(token_id)
        return PromptToken(
            token_id=token_id,
            text=raw.decode("utf-8", "replace"),
            raw=raw,
            start=start,
            logprob=known.logprob if known else None,
            rank=known.rank if known else None,
            top_logprobs=tuple(
                token_logprob(tokenizer, *pair) for pair in (known.top_logprobs if known else ())
            ),
        )

    known = (None, *logprobs)
    return tuple(told(*one) for one in zip(token_ids, starts, known, strict=True))
