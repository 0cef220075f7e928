"""What a request's rules make of one row of logits: masks, biases and penalties.

Repetition as in CTRL (arXiv:1909.05858), over prompt and outputs; frequency and presence as in
OpenAI's API reference, over outputs. Everything is counted from the known tokens each time: there
is no state to carry through preemption. One row at a time and with sums and products only, which
round alike wherever a number stands, so a row does not depend on its batch. Knows no sampling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from native_engine.types import LogitRules, SamplingParams, TokenHistory


def apply_rules(
    logits: Tensor, params: SamplingParams, rules: LogitRules, history: TokenHistory
) -> Tensor:
    """A new row `[num_token_ids]` from the float32 row `logits`; its largest entry is 0.

    Shifting it there changes no distribution, and keeps whatever a bias or a tiny penalty made of
    it finite when a small temperature divides it. Masked entries are negative infinity; at least
    one is not: bans that would leave nothing are void.
    """
    row = logits.clone()
    if rules.logit_bias:
        ids, biases = zip(*rules.logit_bias, strict=True)
        row[_index(ids, row)] += torch.tensor(biases, device=row.device)
    if rules.repetition_penalty != 1.0:
        _penalise_repetition(row, rules.repetition_penalty, history)
    if rules.frequency_penalty or rules.presence_penalty:
        _penalise_outputs(row, rules, history)
    limits = torch.finfo(row.dtype)
    row = _masked(row.clamp_(limits.min, limits.max), params, rules, history)
    return row - row.max()


def _penalise_repetition(row: Tensor, penalty: float, history: TokenHistory) -> None:
    seen = _index(set(history.token_ids), row)
    logits = row[seen]
    row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)


def _penalise_outputs(row: Tensor, rules: LogitRules, history: TokenHistory) -> None:
    counts = Counter(history.token_ids[history.num_prompt_tokens :])
    penalties = [
        rules.frequency_penalty * count + rules.presence_penalty for count in counts.values()
    ]
    row[_index(counts, row)] -= torch.tensor(penalties, device=row.device)


def _masked(
    row: Tensor, params: SamplingParams, rules: LogitRules, history: TokenHistory
) -> Tensor:
    """`row` without what may not come now. Masks come after all arithmetic, which thus never meets
    an infinity; first, where they belong, they would mask the same.
    """
    if rules.allowed_token_ids:
        allowed = _index(rules.allowed_token_ids, row)
        row = torch.full_like(row, -torch.inf).index_copy_(0, allowed, row[allowed])
    # A tokenizer may know an EOS id that the model has no logit for.
    banned = [one for one in _banned_ids(params, rules, history) if one < len(row)]
    if not banned:
        return row
    left = row.index_fill(0, _index(banned, row), -torch.inf)
    return left if bool(torch.isfinite(left).any()) else row


def _banned_ids(params: SamplingParams, rules: LogitRules, history: TokenHistory) -> list[int]:
    """The ids that would complete a bad word, or end the sequence before its time."""
    banned = [word[-1] for word in rules.bad_words if _ends_with(history, word[:-1])]
    if history.num_outputs < rules.min_tokens:
        banned += params.stop_token_ids
        if not params.ignore_eos:
            banned += params.eos_token_ids
    return banned


def _ends_with(history: TokenHistory, token_ids: tuple[int, ...]) -> bool:
    """Whether the outputs do."""
    length = len(token_ids)
    known = history.token_ids
    return length <= history.num_outputs and tuple(known[len(known) - length :]) == token_ids


def _index(token_ids: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64, device=row.device)
