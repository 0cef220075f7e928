"""What no engine takes in: requests that could never run, however long they waited.

The same for every local engine, whatever it does with what it takes. Knows no queue.
"""

from __future__ import annotations

import math
from itertools import chain

from native_engine.errors import EngineError, InvalidTokenId, RequestTooLong
from native_engine.types import EngineInfo, EngineRequest, SamplingParams


def check_request(request: EngineRequest, info: EngineInfo) -> None:
    """Refuse what can never run.

    Raises:
        RequestTooLong: prompt and one token exceed the context or the block pool, or the prompt
        alone what the engine takes.
        InvalidTokenId: an id of the prompt or the sampling params is outside the vocabulary.
        EngineError: the prompt is empty, nothing is left to draw behind the outputs that came with
            it, or the weight is not above 0.
    """
    num_prompt_tokens = len(request.prompt_token_ids)
    num_tokens = num_prompt_tokens + len(request.output_token_ids)
    if not num_prompt_tokens:
        raise EngineError("the prompt is empty: at least one token is needed to go on from")
    if num_tokens + 1 > info.max_model_len:
        raise RequestTooLong(
            f"the prompt has {num_tokens} tokens; with one to generate that is more than "
            f"the context of {info.max_model_len}; shorten it"
        )
    if info.max_input_tokens and num_prompt_tokens > info.max_input_tokens:
        raise RequestTooLong(
            f"the prompt has {num_prompt_tokens} tokens, and this engine takes at most "
            f"{info.max_input_tokens}; shorten it"
        )
    blocks = -(-(num_tokens + 1) // info.block_size)
    if blocks > info.num_blocks:
        raise RequestTooLong(
            f"the prompt has {num_tokens} tokens; with one to generate that needs {blocks} "
            f"KV blocks of {info.block_size} tokens, and there are {info.num_blocks}; "
            "shorten it, or give the engine more blocks"
        )
    _check_token_ids("prompt", request.prompt_token_ids, info.vocab_size)
    _check_token_ids("output", request.output_token_ids, info.vocab_size)
    if request.output_token_ids and len(request.output_token_ids) >= request.sampling.max_tokens:
        raise EngineError(
            f"{len(request.output_token_ids)} outputs came with the request, which wants "
            f"{request.sampling.max_tokens} in all: there is nothing left to draw"
        )
    _check_sampling(request.sampling, info.vocab_size)
    if not 0 < request.weight < math.inf:
        raise EngineError(f"weight {request.weight} must be above 0 and finite")


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidTokenId. EOS ids are the model's own, not a client's."""
    _check_token_ids("stop", sampling.stop_token_ids, vocab_size)
    rules = sampling.rules
    if rules is not None:
        _check_token_ids("allowed", rules.allowed_token_ids, vocab_size)
        _check_token_ids("biased", tuple(one for one, _ in rules.logit_bias), vocab_size)
        _check_token_ids("banned", tuple(chain.from_iterable(rules.bad_words)), vocab_size)


def _check_token_ids(what: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidTokenId. Checks the ends first: prompts are long, and mostly right."""
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(t for t in token_ids if not 0 <= t < vocab_size)
        raise InvalidTokenId(
            f"{what} token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
        )
