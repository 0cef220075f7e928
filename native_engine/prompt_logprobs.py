"""Log-probabilities of the prompts' own tokens, of those sequences of a step that ask for them.

The hidden state at position p says what comes at p + 1. A prefill has one of each position, and
only the last is sampled; here the head is multiplied with the others, too. Raw logits in float32,
as in `sampler`: no temperature, filter or rule of the request's changes them. Row by row, so a
prompt's numbers do not depend on its chunks or its neighbours. Knows nothing of how they are
collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from native_engine.sampler import NonFiniteLogits
from native_engine.types import PromptLogprob, ScheduledSequence, StepBatch

SLICE_ROWS = 32
"""Rows whose logits exist at a time: twice 6.3 MB of float32 for 49152 tokens, twice 34 for
262144."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the step's hidden states, the token behind it, how many of the likeliest to tell."""

    index: int
    token_id: int
    num_logprobs: int


def score_prompts(
    batch: StepBatch, logits_of: Callable[[list[int]], Tensor]
) -> list[tuple[PromptLogprob, ...]]:
    """One tuple per sequence of the batch, see `SequenceResult`. `logits_of` makes
    `[num_rows, vocab_size]` of rows of the step's hidden states.

    Raises:
        NonFiniteLogits: a row holds NaN or positive infinity.
    """
    rows: list[_Row] = []
    counts: list[int] = []
    first_row = 0
    for sequence in batch.sequences:
        own = _rows(sequence, first_row)
        rows += own
        counts.append(len(own))
        first_row += len(sequence.token_ids)
    scores = _scores(rows, logits_of)
    return [tuple(next(scores) for _ in range(count)) for count in counts]


def _rows(sequence: ScheduledSequence, first_row: int) -> list[_Row]:
    num_logprobs, history = sequence.sampling.num_prompt_logprobs, sequence.history
    if num_logprobs is None or history is None:
        return []
    after_first = sequence.start + 1
    stop = min(after_first + len(sequence.token_ids), history.num_prompt_tokens)
    return [
        _Row(index, token_id, num_logprobs)
        for index, token_id in enumerate(history.token_ids[after_first:stop], first_row)
    ]


def _scores(rows: list[_Row], logits_of: Callable[[list[int]], Tensor]) -> Iterator[PromptLogprob]:
    for start in range(0, len(rows), SLICE_ROWS):
        part = rows[start : start + SLICE_ROWS]
        yield from _score(part, logits_of([row.index for row in part]).float())


def _score(rows: Sequence[_Row], logits: Tensor) -> Iterator[PromptLogprob]:
    logprobs = torch.log_softmax(logits, dim=-1)
    own = torch.tensor([row.token_id for row in rows], device=logits.device)[:, None]
    chosen = logprobs.gather(1, own)
    broken = torch.isnan(chosen).flatten()
    if bool(broken.any()):
        raise NonFiniteLogits([rows[place].index for place in broken.nonzero().flatten().tolist()])
    ranks: list[int] = (1 + (logprobs > chosen).sum(dim=-1)).tolist()
    values: list[float] = chosen.flatten().tolist()
    likeliest = _most_likely(rows, logprobs)
    for row, logprob, rank, top in zip(rows, values, ranks, likeliest, strict=True):
        yield PromptLogprob(
            token_id=row.token_id, logprob=logprob, rank=rank, top_logprobs=tuple(top)
        )


def _most_likely(rows: Sequence[_Row], logprobs: Tensor) -> list[list[tuple[int, float]]]:
    """Rows that want equally many go together: which of equals are left out then depends on the
    row alone.
    """
    found: list[list[tuple[int, float]]] = [[] for _ in rows]
    for wanted in {row.num_logprobs for row in rows} - {0}:
        places = [place for place, row in enumerate(rows) if row.num_logprobs == wanted]
        values, ids = logprobs[places].topk(min(wanted, logprobs.shape[1]), dim=-1)
        for place, some_ids, some_values in zip(places, ids.tolist(), values.tolist(), strict=True):
            pairs = zip(some_ids, some_values, strict=True)
            found[place] = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))
    return found
