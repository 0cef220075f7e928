"""Sampling params of the gateway as an engine takes them: words become token ids, checked ones.

Knows no requests and no processes.
"""

from __future__ import annotations

from collections.abc import Iterable

from backends.errors import BackendRejected
from backends.text.tokenizer import Tokenizer
from backends.types import SamplingParams
from native_engine import types as engine

_NO_RULES = engine.LogitRules()


def check_token_ids(sampling: SamplingParams, vocab_size: int) -> None:
    """Hold the client's token ids against the vocabulary.

    Raises:
        BackendRejected: names the first id that is no entry of it, and its field.
    """
    fields: tuple[tuple[str, Iterable[int]], ...] = (
        ("stop_token_ids", sampling.stop_token_ids),
        ("allowed_token_ids", sampling.allowed_token_ids),
        ("logit_bias", (token_id for token_id, _ in sampling.logit_bias)),
    )
    for param, token_ids in fields:
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise BackendRejected(
                    f"{param}: token id {token_id} is out of range; the vocabulary has "
                    f"{vocab_size} entries, from 0 to {vocab_size - 1}",
                    param=param,
                )


def engine_sampling(sampling: SamplingParams, tokenizer: Tokenizer) -> engine.SamplingParams:
    """The same for an engine, of one token at most: the caller says how many there may be."""
    rules = engine.LogitRules(
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=_spellings(sampling.bad_words, tokenizer),
        min_tokens=sampling.min_tokens,
        logit_bias=sampling.logit_bias,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
    )
    return engine.SamplingParams(
        max_tokens=1,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        seed=sampling.seed,
        eos_token_ids=tokenizer.eos_token_ids,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        num_logprobs=sampling.top_logprobs if sampling.logprobs else None,
        rules=None if rules == _NO_RULES else rules,
        num_prompt_logprobs=sampling.prompt_logprobs,
    )


def _spellings(words: tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as token ids, at the start of a text and after a space: mostly two entries."""
    texts = [text for word in words for text in (word.lstrip(" ") or word, " " + word.lstrip(" "))]
    spelt = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return tuple(dict.fromkeys(one for one in spelt if one))
